"""Next-token distributions below an anchor, from one pass of a block drafter.

    state(path) = tanh(W1[parent] + row code + W4 state(path without the parent))
    conditional(. | path) = softmax(U_depth + W2 state(path) + copy bonus)

The bonus is that of one token: the one which the text would go on with if it copied its latest
match, as long as the parent is copied too (canopy_kernels.ngram.prompt_lookup).

The Markov head is computed for the best candidates of U alone; the rest keeps its share of U as a
tail that no child comes from, so that a node's children never sum above 1.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np

from canopy.models.block_drafter.runner import BlockRows
from canopy_kernels.block_head import best_of, candidates, scores_of, state_of

_NO_STATE = np.zeros(0, np.float32)


@dataclass(frozen=True)
class MarkovHead:
    """A drafter's low-rank scores of a token after a path, and its draft vocabulary."""

    codes: np.ndarray  # float32 [target vocabulary, rank], W1 by parent
    step: np.ndarray  # float32 [rank, rank], W4
    out: np.ndarray  # float32 [V, rank], W2
    draft_ids: np.ndarray  # int32 [V]
    is_on: bool = True  # off: marginals, whatever the path and what was copied
    copy_bonus: np.ndarray | None = None  # float32 [block, lengths of a match], by depth


class Copied(NamedTuple):
    """The latest match of the text's end."""

    length: int  # 0: none
    token_ids: np.ndarray  # int32 [block] what followed it


class _Candidates(NamedTuple):
    """The best of one row of U."""

    columns: np.ndarray  # int32 [n], rising
    tail: float  # log of the summed weight of all others; -inf where there are none
    copied: int  # column of the copied token; -1: none


class BlockDistributions:
    """The distributions of one sequence in one step; rows of U are read when needed."""

    def __init__(
        self,
        rows: BlockRows,
        head: MarkovHead,
        anchor_id: int,
        num_candidates: int,
        temperature: float = 1.0,
        copied: Copied | None = None,
    ) -> None:
        """rows: of one anchor. temperature: of the distributions, positive."""
        has_bonus = head.is_on and head.copy_bonus is not None
        self._copied = copied if has_bonus and copied and copied.length else None
        self._rows = rows
        self._temperature = temperature
        self._head = head
        self._anchor_id = anchor_id
        self._num_candidates = min(num_candidates, rows.logits.shape[1])
        self._candidates: dict[int, _Candidates] = {}
        self._states: dict[tuple[int, ...], np.ndarray] = {}

    @property
    def num_rows(self) -> int:
        """Depths that the block covers."""
        return len(self._rows.logits)

    def after(self, path: Sequence[int], num: int) -> tuple[np.ndarray, np.ndarray, float]:
        """The `num` likeliest next tokens below a path of fewer than `num_rows`; best first.

        int32 [n] token ids, float32 [n] log-probs, the entropy in bits of all candidates (the tail
        as one token).
        """
        depth = len(path)
        best = self._best(depth)
        state = self._state(tuple(path)) if self._head.is_on else self._nothing
        logits, out = self._rows.logits[depth], self._head.out
        scores = scores_of(logits, best.columns, out, state, self._temperature)
        if best.copied >= 0 and self._is_copied(path):
            scores[best.copied] += self._bonus(depth)
        order, log_probs, entropy = best_of(scores, best.tail, num)
        return self._head.draft_ids[best.columns[order]], log_probs, entropy

    @cached_property
    def _nothing(self) -> np.ndarray:
        return np.zeros(self._head.out.shape[1], np.float32)

    def _state(self, path: tuple[int, ...]) -> np.ndarray:
        """float32 [rank]; a tree's paths share those of their beginnings."""
        if path not in self._states:
            before = self._state(path[:-1]) if path else _NO_STATE
            code = self._head.codes[path[-1] if path else self._anchor_id]
            row_code = self._rows.codes[len(path)]
            self._states[path] = state_of(code, row_code, self._head.step, before)
        return self._states[path]

    def _best(self, depth: int) -> _Candidates:
        if depth not in self._candidates:
            self._candidates[depth] = self._look_through(depth)
        return self._candidates[depth]

    def _is_copied(self, path: Sequence[int]) -> bool:
        """Whether the parent is the copy's own; the anchor always is."""
        if not path or self._copied is None:
            return True
        return bool(self._copied.token_ids[len(path) - 1] == path[-1])

    def _bonus(self, depth: int) -> np.float32:
        assert self._copied is not None
        assert self._head.copy_bonus is not None
        bonus = self._head.copy_bonus[depth, self._copied.length]
        return np.float32(bonus / self._temperature)

    def _column(self, depth: int) -> int:
        """Of the copied token; -1 if the draft vocabulary has it not."""
        if self._copied is None:
            return -1
        token_id = self._copied.token_ids[depth]
        column = int(np.searchsorted(self._head.draft_ids, token_id))
        is_known = column < len(self._head.draft_ids) and self._head.draft_ids[column] == token_id
        return column if is_known else -1

    def _look_through(self, depth: int) -> _Candidates:
        logits, wanted = self._rows.logits[depth], self._column(depth)
        columns, tail = candidates(logits, self._temperature, self._num_candidates, wanted)
        column = int(np.searchsorted(columns, wanted)) if wanted >= 0 else -1
        return _Candidates(columns, tail, column)
