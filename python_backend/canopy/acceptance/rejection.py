"""Recursive rejection sampling over children that were drawn without replacement.

At a node with target p and proposal row q, for its children x in the order they were drawn:

    accept x with probability min(1, p(x) / q(x)); otherwise
        p <- norm((p - q)+)        what the proposal left to the target
        q <- norm(q without x)     what the next child was drawn from

and after the last child the token is drawn from p. A deterministic child is the case where q is
the point mass on x: accepted with p(x), otherwise removed from p. The token follows the target's
law whatever the row is, if nothing but the draws themselves decided which children there are:
a slot must be admitted before its token is drawn, and siblings must be admitted in order.
Source: Jeon et al., "Recursive Speculative Decoding" (2024); Chen et al., "Sequoia" (2024).
"""

from collections.abc import Sequence

import numpy as np

from canopy.acceptance.chance import Chance
from canopy.tree import ProposalRow


def draw_children(row: ProposalRow, num: int, chance: Chance) -> np.ndarray:
    """Distinct tokens of the row, drawn one after the other without replacement.

    Returns int32 [n], n <= num: fewer when the row runs out of tokens. The draws are nested: with
    a smaller `num` they are a prefix.
    """
    probs = row_probs(row)
    drawn: list[int] = []
    while len(drawn) < num and probs.any():
        place = chance.draws(probs, len(drawn))
        drawn.append(int(row.token_ids[place]))
        probs[place] = 0.0
    return np.array(drawn, np.int32)


def slot_log_probs(row: ProposalRow, num: int) -> np.ndarray:
    """What a policy may read about the slots below a node before their tokens are drawn.

    Slot j is given the j-th largest log-prob of the row: it falls with j, sums to 1 at most over
    the slots, and is known before any draw. float32 [n], n <= num.
    """
    return np.sort(row.log_probs)[::-1][:num]


def row_probs(row: ProposalRow) -> np.ndarray:
    """float64 [K], summing to 1; drawing and accepting both read the row through this."""
    weights = np.exp(row.log_probs.astype(np.float64))
    return weights / weights.sum()


def decide_token(
    target_probs: np.ndarray, children: Sequence[int], row: ProposalRow, chance: Chance
) -> int:
    """The token that follows a node: one of its children's, or another one.

    target_probs: float64 [V], sum 1. children: the tokens of the node's children, as drawn from
    the row; deterministic if the row is empty. Raises ValueError for a child that cannot have
    been drawn from the row.
    """
    target = target_probs.copy()
    draft = row_probs(row)
    for index, token in enumerate(children):
        token_ids, proposal = row.token_ids, draft
        if row.is_empty:
            token_ids, proposal = np.array([token]), np.ones(1)
        is_child = token_ids == token
        proposed = proposal[is_child].sum()
        if not proposed > 0.0:
            raise ValueError(f"child {token} was not drawn from the node's proposal row")
        if chance.accepts(min(1.0, target[token] / proposed), index):
            return int(token)
        target[token_ids] = np.maximum(target[token_ids] - proposal, 0.0)
        mass = target.sum()
        if mass == 0.0:  # proposal and target are one but for rounding
            return int(token)
        target /= mass
        draft = _without(draft, is_child) if not row.is_empty else draft
    return chance.draws(target, len(children))


def _without(probs: np.ndarray, removed: np.ndarray) -> np.ndarray:
    rest = np.where(removed, 0.0, probs)
    mass = rest.sum()
    return rest / mass if mass > 0.0 else rest
