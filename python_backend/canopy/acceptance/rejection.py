"""Recursive rejection sampling over children that were drawn without replacement.

At a node with target p and proposal row q, for its children x in the order they were drawn:

    accept x with probability min(1, p(x) / q(x)); otherwise
        p <- norm((p - q)+)        what the proposal left to the target
        q <- norm(q without x)     what the next child was drawn from

and after the last child the token is drawn from p. A deterministic child is the case where q is
the point mass on x: accepted with p(x), otherwise removed from p. The token follows the target's
distribution whatever the row is, if nothing but the draws themselves decided which children there
are:
a slot must be admitted before its token is drawn, and siblings must be admitted in order.
Source: Jeon et al., "Recursive Speculative Decoding" (2024); Chen et al., "Sequoia" (2024).
"""

from collections.abc import Sequence

import numpy as np

from canopy.acceptance.random_source import RandomSource
from canopy.tree import ProposalRow


def draw_children(row: ProposalRow, num: int, random_source: RandomSource) -> np.ndarray:
    """Distinct tokens of the row, drawn one after the other without replacement.

    Returns int32 [n], n <= num: fewer when the row runs out of tokens. The draws are nested: with
    a smaller `num` they are a prefix.
    """
    probs = row_probs(row)
    drawn: list[int] = []
    while len(drawn) < num and probs.any():
        place = random_source.sample(probs, len(drawn))
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
    target_weights: np.ndarray,
    children: Sequence[int],
    row: ProposalRow,
    random_source: RandomSource,
) -> int:
    """The token that follows a node: one of its children's, or another one.

    target_weights: float64 [V], the target's distribution up to a factor. children: the tokens of
    the node's children, as drawn from the row; deterministic if the row is empty. Raises ValueError
    for a child that cannot have been drawn from the row.
    """
    residual = Residual(target_weights, row)
    for index, token in enumerate(children):
        if random_source.bernoulli(residual.accept_probability(token), index):
            return int(token)
    return random_source.sample(residual.unnormalized_probs, len(children))


class Residual:
    """What the children rejected so far have left of the target at a node.

    `weight` w is the probability with which the node itself is to be accepted, 1 for a node that
    already is; `unnormalized_probs`, float64 [V], is w p for the current p.
    """

    def __init__(self, target_weights: np.ndarray, row: ProposalRow, weight: float = 1.0) -> None:
        self.weight = weight
        self.unnormalized_probs = target_weights * (weight / target_weights.sum())
        self._row = row
        self._probs = row_probs(row)

    def accept_probability(self, token: int) -> float:
        """The probability to accept the next child; the residual becomes that after its rejection.

        Raises ValueError for a token that cannot have been drawn.
        """
        token_ids, probs = self._proposal(token)
        proposed = probs[token_ids == token].sum()
        if not proposed > 0.0:
            raise ValueError(f"child {token} was not drawn from the node's proposal row")
        acceptance = min(1.0, float(self.unnormalized_probs[token] / proposed))
        self.unnormalized_probs[token_ids] = np.maximum(
            self.unnormalized_probs[token_ids] - probs, 0.0
        )
        left = float(self.unnormalized_probs.sum())
        rejection = left + (1.0 - self.weight)
        if rejection == 0.0:  # proposal and target are one but for rounding
            return 1.0
        self.weight = left / rejection
        self.unnormalized_probs /= rejection
        return acceptance

    def _proposal(self, token: int) -> tuple[np.ndarray, np.ndarray]:
        """What the next child was drawn from, tokens and probabilities; without the child after."""
        if self._row.is_empty:
            return np.array([token]), np.ones(1)
        token_ids, probs = self._row.token_ids, self._probs / (self._probs.sum() or 1.0)
        self._probs = np.where(token_ids == token, 0.0, self._probs)
        return token_ids, probs
