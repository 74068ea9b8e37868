// The conversation as it is shown: messages of both sides, the answer in pieces by rounds.

import { acceptanceLength, numTokens } from "./round.js";

/** The list of messages. `onOpen(answer)` is called when the rounds of an answer are asked for. */
export class Messages {
  #list = document.getElementById("messages");
  #welcome = document.getElementById("welcome");

  constructor(onOpen) {
    this.onOpen = onOpen;
  }

  clear() {
    this.#list.replaceChildren(this.#welcome);
  }

  addUser(text) {
    this.#welcome.remove();
    this.#add("message user").textContent = text;
  }

  /** An empty answer that grows. */
  addAnswer() {
    const answer = new AnswerView(this.#add("message assistant waiting"), () => this.#follow());
    answer.summary.addEventListener("click", () => this.onOpen(answer));
    this.#list.append(answer.summary);
    return answer;
  }

  #add(kind) {
    const element = document.createElement("div");
    element.className = kind;
    this.#list.append(element);
    element.scrollIntoView({ block: "nearest" });
    return element;
  }

  /** Scroll to a piece of text; the page itself stays where it is. */
  reveal(piece) {
    const box = this.#list.getBoundingClientRect(), own = piece.getBoundingClientRect();
    if (own.top < box.top || own.bottom > box.bottom) {
      this.#list.scrollTop += own.top - box.top - (box.height - own.height) / 2;
    }
  }

  /** Stay at the end, unless the reader has scrolled up. */
  #follow() {
    const below = this.#list.scrollHeight - this.#list.scrollTop - this.#list.clientHeight;
    if (below < 120) this.#list.scrollTop = this.#list.scrollHeight;
  }
}

/** One answer: its text, its rounds, and a line about both. */
export class AnswerView {
  text = "";
  rounds = [];
  summary = document.createElement("button");
  #pieces = new Map(); // round number → the element of the text that it showed

  constructor(element, onGrown) {
    this.element = element;
    this.onGrown = onGrown;
    this.summary.type = "button";
    this.summary.className = "plain summary";
    this.summary.hidden = true;
  }

  /** Append a piece and the rounds behind it. */
  append(event) {
    const piece = document.createElement("span");
    piece.className = "piece";
    piece.textContent = event.text;
    this.element.append(piece);
    this.text += event.text;
    this.rounds.push(...event.rounds);
    for (const round of event.rounds) this.#pieces.set(round.round, piece);
    this.#summarise("");
    this.onGrown();
  }

  end(note) {
    this.element.classList.remove("waiting");
    this.#summarise(note);
    this.onGrown();
  }

  /** Mark the text that a round showed; returns it, if there is any. */
  mark(round) {
    this.element.querySelector(".current")?.classList.remove("current");
    const piece = round && this.#pieces.get(round.round);
    piece?.classList.add("current");
    return piece;
  }

  set isOpen(value) {
    this.summary.setAttribute("aria-pressed", value);
    if (!value) this.mark(null);
  }

  #summarise(note) {
    const count = this.rounds.length;
    const tokens = this.rounds.reduce((sum, round) => sum + numTokens(round), 0);
    const length = acceptanceLength(this.rounds, count).toFixed(2);
    const counts = [`${tokens} tokens`, `${count} rounds`, `${length} tokens a round`];
    const parts = count ? [...counts, note] : [note];
    this.summary.textContent = parts.filter(Boolean).join(" · ");
    this.summary.hidden = count === 0 && !note;
  }
}
