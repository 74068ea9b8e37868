// What a round of the trace means; see canopy/engine/trace.py for its fields.

/** Tokens that the round emitted: the accepted path, and the bonus token unless a stop cut it. */
export const numTokens = (round) => round.accepted.length + (round.bonus ? 1 : 0);

/** Drafted nodes; the anchor is not counted. */
export const numNodes = (round) => round.token_ids.length - 1;

/** Mean number of tokens a round over the first `count` rounds. */
export function acceptanceLength(rounds, count) {
  let tokens = 0;
  for (let i = 0; i < count; i++) tokens += rounds[i].accepted.length + 1;
  return count ? tokens / count : 0;
}

/** A token's text on one line, with its spaces and breaks to be seen. */
export function visible(text, maxLength = 14) {
  const shown = text.replace(/\n/g, "↵").replace(/\t/g, "⇥").replace(/ /g, "·") || "∅";
  const characters = [...shown];
  return characters.length > maxLength ? characters.slice(0, maxLength - 1).join("") + "…" : shown;
}

/** One sentence about a round, for those who do not see the picture. */
export function describe(round) {
  const path = round.accepted.map((node) => round.texts[node]).join("");
  const accepted = round.accepted.length ? `, “${path}”` : "";
  const bonus = round.bonus ? `; bonus token “${round.bonus.text}”` : "";
  return `Round ${round.round}: ${numNodes(round)} nodes drafted, ` +
    `${round.accepted.length} accepted${accepted}${bonus}`;
}
