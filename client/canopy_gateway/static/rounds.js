// The right-hand panel: the rounds of one answer, one of them shown, and the replay.

import { drawSurvival, drawTimeline } from "./charts.js";
import { acceptanceLength, numNodes, numTokens } from "./round.js";
import { drawTree } from "./tree-view.js";

const STEP_MS = 900;
const MAX_REST_MS = 250;
const ICONS = { play: "M8 5v14l11-7Z", pause: "M7 5h3.5v14H7ZM13.5 5H17v14h-3.5Z" };

/** Shows one answer's rounds; `onShow(round, isNewest)` is told which. */
export class RoundsPanel {
  #rounds = [];
  #current = -1;
  #timer = null;
  #isDue = false; // a frame is asked for at most once
  #restMs = 0; // until the next one, so that drawing leaves time for clicks and keys
  #grows = false;
  #parts = Object.fromEntries(
    ["figures", "tree", "survival", "timeline", "slider", "position", "play"].map((id) => [id, document.getElementById(id)]),
  );

  #empty = this.#parts.tree.firstElementChild;

  constructor(onShow) {
    this.onShow = onShow;
    this.#parts.slider.addEventListener("input", () => this.#moveTo(this.#parts.slider.value - 1));
    this.#parts.play.addEventListener("click", () => this.togglePlay());
    new ResizeObserver(() => this.#redraw()).observe(this.#parts.tree);
    this.#showFigures();
    this.#showPlay();
  }

  /** Show another answer's rounds; the list may grow afterwards, see `grown`. */
  open(rounds) {
    this.pause();
    this.#rounds = rounds;
    this.#current = rounds.length - 1;
    this.#redraw();
  }

  /** The list has grown: whoever looks at the newest round follows. */
  grown(numNew) {
    if (this.#current + 1 >= this.#rounds.length - numNew && !this.#timer) {
      this.#current = this.#rounds.length - 1;
    }
    this.#redraw();
  }

  get rounds() {
    return this.#rounds;
  }

  /** One round on or back. */
  step(by) {
    this.#moveTo(this.#current + by);
  }

  togglePlay() {
    if (this.#timer) return this.pause();
    if (this.#rounds.length < 2) return;
    this.#show(this.#current + 1 < this.#rounds.length ? this.#current : 0, true);
    this.#timer = setInterval(() => this.#advance(), STEP_MS);
    this.#showPlay();
  }

  pause() {
    clearInterval(this.#timer);
    this.#timer = null;
    this.#showPlay();
  }

  #advance() {
    if (this.#current + 1 < this.#rounds.length) this.#show(this.#current + 1, true);
    else this.pause();
  }

  #moveTo(index) {
    this.pause();
    this.#show(Math.max(0, Math.min(this.#rounds.length - 1, index)), false);
  }

  #show(index, grows) {
    this.#current = index;
    this.#grows = grows;
    this.#redraw();
  }

  #redraw() {
    if (this.#isDue) return;
    this.#isDue = true;
    setTimeout(() => requestAnimationFrame(() => this.#drawAndRest()), this.#restMs);
  }

  #drawAndRest() {
    const startMs = performance.now();
    this.#isDue = false;
    this.#draw();
    this.#grows = false;
    this.#restMs = Math.min(3 * (performance.now() - startMs), MAX_REST_MS);
  }

  #draw() {
    const { slider, position, play, tree, survival, timeline } = this.#parts;
    const round = this.#rounds[this.#current];
    slider.disabled = play.disabled = this.#rounds.length < 2;
    slider.max = Math.max(this.#rounds.length, 1);
    slider.value = this.#current + 1;
    position.textContent = round ? `${this.#current + 1} of ${this.#rounds.length}` : "no rounds yet";
    slider.setAttribute("aria-valuetext", `Round ${position.textContent}`);
    this.#showFigures(round);
    if (!round) {
      tree.replaceChildren(this.#empty);
      survival.replaceChildren();
      timeline.replaceChildren();
      return;
    }
    drawTree(tree, round, this.#grows);
    drawSurvival(survival, round);
    drawTimeline(timeline, this.#rounds, this.#current);
    this.onShow(round, this.#current + 1 === this.#rounds.length);
  }

  #showFigures(round) {
    const length = acceptanceLength(this.#rounds, this.#current + 1);
    const figures = [
      ["Tokens this round", round && numTokens(round)],
      ["Acceptance length", round && length.toFixed(2)],
      ["Nodes", round && numNodes(round), round && `of ${round.node_budget}`],
      ["Price θ", round && (round.price?.toFixed(3) ?? "–")],
      ["Verify", round && round.verify_ms.toFixed(1), "ms"],
      ["Others running", round && round.num_running - 1],
    ];
    this.#parts.figures.replaceChildren(...figures.map(([name, value, unit]) => figure(name, value, unit)));
  }

  #showPlay() {
    const name = this.#timer ? "pause" : "play";
    this.#parts.play.setAttribute("aria-label", name === "play" ? "Play" : "Pause");
    this.#parts.play.innerHTML =
      `<svg viewBox="0 0 24 24" fill="currentColor" aria-hidden="true"><path d="${ICONS[name]}"/></svg>`;
  }
}

function figure(name, value, unit) {
  const group = document.createElement("div");
  const term = document.createElement("dt");
  const number = document.createElement("dd");
  term.textContent = name;
  number.textContent = value ?? "–";
  if (unit && value !== undefined) {
    const small = document.createElement("small");
    small.textContent = ` ${unit}`;
    number.append(small);
  }
  group.append(term, number);
  return group;
}
