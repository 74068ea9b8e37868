// One round's draft tree as a picture.

import { describe, numNodes } from "./round.js";
import { svg } from "./svg.js";
import { layOut } from "./tree-layout.js";

const MAX_SCALE = 1.15;
const MIN_SCALE = 0.6; // smaller letters cannot be read: the panel scrolls instead

/** Draw `round` into `panel`; `grows` lets it appear level by level. */
export function drawTree(panel, round, grows) {
  const { nodes, width, height } = layOut(round);
  const fit = Math.min(panel.clientWidth / width, panel.clientHeight / height);
  const scale = Math.max(MIN_SCALE, Math.min(MAX_SCALE, fit));
  const picture = svg("svg", {
    viewBox: `0 0 ${width} ${height}`,
    width: Math.floor(width * scale),
    height: Math.floor(height * scale),
    role: "img",
    "aria-label": describe(round),
    class: grows ? "growing" : "",
  });
  const drafted = nodes.map((node, index) => ({ node, index })).slice(1);
  picture.append(...drafted.map(({ node }) => edge(nodes[node.parent], node)));
  picture.append(...nodes.map(pill));
  panel.replaceChildren(picture, ...note(round));
}

/** Why there is no tree, where there is none. */
function note(round) {
  if (numNodes(round) > 0) return [];
  const text = document.createElement("p");
  text.className = "note";
  const reason = round.predicted_ms === null ? "Nothing was drafted" : "No node was worth verifying";
  text.textContent = `${reason}: the target decoded alone.`;
  return [text];
}

function opacity(node) {
  return node.kind === "rejected" ? 0.45 + 0.55 * Math.sqrt(node.survival) : 1;
}

function edge(parent, child) {
  const from = parent.x + parent.width;
  const middle = (from + child.x) / 2;
  const line = svg("path", {
    d: `M${from} ${parent.y} C${middle} ${parent.y} ${middle} ${child.y} ${child.x} ${child.y}`,
    class: `edge ${child.kind}`,
    opacity: child.kind === "rejected" ? 0.7 * opacity(child) : 1,
  });
  line.style.setProperty("--depth", child.depth);
  return line;
}

function pill(node) {
  const top = node.y - node.height / 2;
  const label = svg("text", {
    transform: `translate(${node.x + node.width / 2} ${node.y}) scale(${node.scale})`,
  }, node.text);
  const box = { x: node.x, y: top, width: node.width, height: node.height, rx: node.height / 2.6 };
  const group = svg("g", { class: `node ${node.kind}`, opacity: opacity(node) },
    svg("title", {}, title(node)), svg("rect", { ...box, class: "pill" }), label);
  if (node.kind === "rejected" || node.kind === "accepted") group.append(...survivalBar(node, top));
  group.style.setProperty("--depth", node.depth);
  return group;
}

function survivalBar(node, top) {
  const bar = { x: node.x + 4, y: top + node.height + 2.5, height: 3, rx: 1.5 };
  const full = node.width - 8;
  return [
    svg("rect", { ...bar, width: full, class: "scale" }),
    svg("rect", { ...bar, width: Math.max(full * node.survival, 1), class: "worth" }),
  ];
}

function title(node) {
  if (node.kind === "anchor") return `anchor ${node.text}: the last token so far`;
  if (node.kind === "bonus") return `bonus token ${node.text}: the target’s own`;
  return `${node.text}: survival ${(100 * node.survival).toFixed(1)} %, ${node.kind}`;
}
