// Where every node of a round's tree stands: depth to the right, siblings below each other.

import { visible } from "./round.js";

const CHARACTER = 7.9; // width of the monospaced letters at full size
const PADDING = 10;
const GAP_X = 30;
const ROW = 40;
const HEIGHT = 26;
const MARGIN = 14;

/** {nodes, width, height}; a node is {kind, text, parent, survival, depth, scale, x, y, width, height},
 *  x at its left edge and y at its middle. The bonus token is the last node. */
export function layOut(round) {
  const nodes = round.texts.map((text, index) => ({
    text: visible(text),
    parent: round.parents[index],
    survival: round.survival[index],
    kind: index === 0 ? "anchor" : "rejected",
  }));
  for (const index of round.accepted) nodes[index].kind = "accepted";
  if (round.bonus) {
    const parent = round.accepted.at(-1) ?? 0;
    nodes.push({ text: visible(round.bonus.text), parent, survival: 1, kind: "bonus" });
  }
  const children = childrenOf(nodes);
  placeColumns(nodes);
  const numRows = placeRows(nodes, children);
  const right = Math.max(...nodes.map((node) => node.x + node.width));
  return { nodes, width: right + MARGIN, height: numRows * ROW + 2 * MARGIN - (ROW - HEIGHT) };
}

function childrenOf(nodes) {
  const children = nodes.map(() => []);
  nodes.forEach((node, index) => index > 0 && children[node.parent].push(index));
  // The way that was taken stands on top, the others in the order of their survival.
  const rank = (index) => (nodes[index].kind === "rejected" ? nodes[index].survival : 2);
  for (const siblings of children) siblings.sort((a, b) => rank(b) - rank(a));
  return children;
}

function placeColumns(nodes) {
  const widths = [];
  nodes.forEach((node, index) => {
    node.depth = index === 0 ? 0 : nodes[node.parent].depth + 1;
    node.scale = node.kind === "rejected" ? 0.78 + 0.22 * Math.sqrt(node.survival) : 1;
    node.width = node.scale * ([...node.text].length * CHARACTER + 2 * PADDING);
    node.height = node.scale * HEIGHT;
    widths[node.depth] = Math.max(widths[node.depth] ?? 0, node.width);
  });
  const lefts = [MARGIN];
  widths.forEach((width, depth) => (lefts[depth + 1] = lefts[depth] + width + GAP_X));
  for (const node of nodes) node.x = lefts[node.depth];
}

/** Each leaf takes a row, each parent the row of its first child: chosen ways run straight. */
function placeRows(nodes, children) {
  let row = 0;
  const visit = (index) => {
    const start = row;
    children[index].forEach(visit);
    if (children[index].length === 0) row += 1;
    nodes[index].y = MARGIN + HEIGHT / 2 + start * ROW;
  };
  visit(0);
  return row;
}
