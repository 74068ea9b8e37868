"""Next-token distributions below an anchor, from one pass of a DSpark or DFlash head.

    scores(. | path) = (base logits of the slot + W2 bias(path)) / temperature
    log q(x | path)  = score(x) - log(sum over candidates of exp(score) + exp(tail))

Candidates are the best tokens of a slot's base logits. All others are its tail, which keeps its
weight from there and that no child comes from.

A confidence head estimates how much of the target's distribution the drafter's covers, given that
all tokens before were accepted: the expected sum over x of min(p(x), q(x)). Spread in proportion
to q it makes the estimate of an edge c * q(x), and a node's children sum to c at most.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from canopy.models.draft_heads.markov import START, MarkovTables, PathState
from canopy_kernels.block_head import best_of


@dataclass(frozen=True)
class HeadTables:
    """Of one head, for all its passes."""

    draft_ids: np.ndarray  # int32 [Vd] target ids of the draft vocabulary
    markov: MarkovTables | None
    confidence: np.ndarray | None  # float32 [rank] weights of the parent's code; [0]: none of it


@dataclass(frozen=True)
class SlotCandidates:
    """What a pass says of the slots of one sequence, S of them."""

    columns: np.ndarray  # int64 [S, n] of the draft vocabulary
    scores: np.ndarray  # float32 [S, n] base logits over the temperature
    tails: np.ndarray  # float32 [S] log of the summed exp of all other scores; -inf: there are none
    codes: np.ndarray  # float32 [S, code], see MarkovHead.row_codes
    confidences: np.ndarray  # float32 [S] log-odds without the parent's part; or [0]


class HeadDistributions:
    """`NextTokens` of one sequence in one step."""

    def __init__(
        self, slots: SlotCandidates, tables: HeadTables, anchor_id: int, temperature: float
    ) -> None:
        """temperature: of the distributions, positive."""
        self._slots = slots
        self._tables = tables
        self._anchor_id = anchor_id
        self._temperature = temperature
        self._states: dict[tuple[int, ...], PathState] = {}

    @property
    def num_rows(self) -> int:
        """Depths that the block covers."""
        return len(self._slots.columns)

    def after(self, path: Sequence[int], num: int) -> tuple[np.ndarray, np.ndarray, float]:
        """See `NextTokens`."""
        depth, markov = len(path), self._tables.markov
        columns, scores = self._slots.columns[depth], self._slots.scores[depth]
        if markov is not None:
            bias = markov.out[columns] @ self._state(tuple(path)).bias
            scores = scores + (bias / self._temperature).astype(np.float32)
        places, log_probs, entropy = best_of(scores, self._slots.tails[depth], num)
        log_probs = log_probs + np.float32(self._log_confidence(path))
        return self._tables.draft_ids[columns[places]], log_probs, entropy

    def _parent(self, path: Sequence[int]) -> int:
        return path[-1] if path else self._anchor_id

    def _state(self, path: tuple[int, ...]) -> PathState:
        """A tree's paths share those of their beginnings."""
        if path not in self._states:
            assert self._tables.markov is not None
            before = self._state(path[:-1]) if path else START
            code = self._slots.codes[len(path)]
            self._states[path] = self._tables.markov.step(before, self._parent(path), code)
        return self._states[path]

    def _log_confidence(self, path: Sequence[int]) -> float:
        weights = self._tables.confidence
        if weights is None:
            return 0.0
        log_odds = float(self._slots.confidences[len(path)])
        if len(weights) and self._tables.markov is not None:
            log_odds += float(weights @ self._tables.markov.parents[self._parent(path)])
        return -math.log1p(math.exp(-log_odds)) if log_odds > -700.0 else log_odds
