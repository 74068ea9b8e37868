// Two small charts: what the nodes of a round were worth, and how many tokens every round gave.

import { svg } from "./svg.js";

const WIDTH = 1000; // of both charts, stretched to their panels

/** Survival of a round's nodes, best first, against the price that each had to pay. */
export function drawSurvival(panel, round) {
  const height = panel.clientHeight, base = height - 1;
  const room = panel.clientWidth;
  const order = round.survival.map((_, node) => node).slice(1);
  order.sort((a, b) => round.survival[b] - round.survival[a]);
  const step = Math.min(room / Math.max(order.length, 1), 26);
  const accepted = new Set(round.accepted);
  const most = Math.max(...order.map((node) => round.survival[node]), round.price ?? 0, 0.01);
  const scaled = (value) => (value / most) * (base - 4);
  const sticks = order.map((node, rank) => {
    const tall = Math.max(scaled(round.survival[node]), 1);
    const kind = accepted.has(node) ? "stick accepted" : "stick";
    return svg("rect", { x: rank * step, y: base - tall, width: step * 0.72, height: tall, rx: 1.5, class: kind });
  });
  const picture = svg("svg", { role: "img", "aria-label": survivalText(round, order) },
    svg("line", { x1: 0, x2: room, y1: base, y2: base, class: "base" }), ...sticks);
  if (round.price !== null) picture.append(...priceLine(round.price, room, base - scaled(round.price)));
  panel.replaceChildren(picture);
}

function priceLine(price, room, y) {
  const label = { x: room, y: y > 16 ? y - 5 : y + 13, "text-anchor": "end", class: "price" };
  return [
    svg("line", { x1: 0, x2: room, y1: y, y2: y, class: "price" }),
    svg("text", label, `θ ${price.toFixed(3)}`),
  ];
}

function survivalText(round, order) {
  if (order.length === 0) return "No node in this round";
  const [best, least] = [order[0], order.at(-1)].map((node) => round.survival[node].toFixed(2));
  const price = round.price === null ? "" : `, price ${round.price.toFixed(3)}`;
  return `Survival of the nodes from ${best} down to ${least}${price}`;
}

/** Tokens of every round, accepted and bonus, the shown one marked. */
export function drawTimeline(panel, rounds, current) {
  const height = 40, most = Math.max(...rounds.map((round) => round.accepted.length + 1), 4);
  const step = WIDTH / rounds.length;
  const unit = (height - 2) / most;
  const picture = svg("svg", { viewBox: `0 0 ${WIDTH} ${height}`, preserveAspectRatio: "none" });
  rounds.forEach((round, index) => {
    const place = { x: index * step + step * 0.1, width: step * 0.8 };
    const mark = index === current ? " current" : "";
    const accepted = round.accepted.length * unit, bonus = round.bonus ? unit : 0;
    picture.append(
      svg("rect", { ...place, y: height - accepted, height: accepted, class: `drafted${mark}` }),
      svg("rect", { ...place, y: height - accepted - bonus, height: bonus, class: `bonus${mark}` }),
    );
  });
  panel.replaceChildren(picture);
}
