"""Next-token laws below an anchor, from one pass of a block drafter.

    conditional(. | parent, depth) = softmax(U_depth + W2 W1[parent] + copy bonus)

The bonus is that of one token: the one which the text would go on with if it copied its latest
match, as long as the parent is copied too (canopy_kernels.copying).

The Markov head is computed for the best candidates of U alone; the rest keeps its share of U as a
tail that no child comes from, so that a node's children never sum above 1.
"""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

LN2 = float(np.log(2.0))


@dataclass(frozen=True)
class MarkovHead:
    """The low-rank transition scores of a drafter, and its draft vocabulary."""

    codes: np.ndarray  # float32 [target vocabulary, rank], W1 by parent
    out: np.ndarray  # float32 [V, rank], W2
    draft_ids: np.ndarray  # int32 [V]
    is_on: bool = True  # off: marginals, whatever the parent and what was copied
    copy_bonus: np.ndarray | None = None  # float32 [block, lengths of a match], by depth


class Copied(NamedTuple):
    """The latest match of the text's end."""

    length: int  # 0: none
    token_ids: np.ndarray  # int32 [block] what followed it


@dataclass(frozen=True)
class _Candidates:
    """The best of one row of U."""

    token_ids: np.ndarray  # int32 [n]
    logits: np.ndarray  # float32 [n]
    out: np.ndarray  # float32 [n, rank]
    tail: float  # log of the summed weight of all others; -inf where there are none
    copied: int | None  # place of the copied token


class BlockConditionals:
    """The laws of one sequence in one turn; rows of U are looked through when they are needed."""

    def __init__(
        self,
        logits: np.ndarray,
        head: MarkovHead,
        num_candidates: int,
        temperature: float = 1.0,
        copied: Copied | None = None,
    ) -> None:
        """logits: float32 [block, V]. temperature: of the laws, positive."""
        has_bonus = head.is_on and head.copy_bonus is not None
        self._copied = copied if has_bonus and copied and copied.length else None
        self._logits = logits / np.float32(temperature)
        self._temperature = np.float32(temperature)
        self._head = head
        self._num_candidates = min(num_candidates, logits.shape[1])
        self._candidates: dict[int, _Candidates] = {}

    @property
    def num_rows(self) -> int:
        """Depths that the block covers."""
        return len(self._logits)

    def at(self, depth: int, parent_id: int) -> tuple[np.ndarray, np.ndarray, float]:
        """Next tokens below `parent_id`, which lies `depth` below the anchor; best first.

        int32 [n] token ids, float32 [n] log-probs, the entropy in bits (the tail as one token).
        """
        best = self._best(depth)
        scores = best.logits
        if self._head.is_on:
            scores = scores + best.out @ (self._head.codes[parent_id] / self._temperature)
            if best.copied is not None and self._is_copied(depth, parent_id):
                scores[best.copied] += self._bonus(depth)
        top = float(scores.max())
        weights = np.exp(scores - top)
        total = float(weights.sum()) + np.exp(min(best.tail - top, 80.0))
        log_probs = scores - np.float32(top + np.log(total))
        order = np.argsort(-log_probs, kind="stable")
        return best.token_ids[order], np.minimum(log_probs[order], 0.0), _entropy(log_probs)

    def _best(self, depth: int) -> _Candidates:
        if depth not in self._candidates:
            self._candidates[depth] = self._look_through(depth)
        return self._candidates[depth]

    def _is_copied(self, depth: int, parent_id: int) -> bool:
        """Whether the parent is the copy's own; the anchor always is."""
        return depth == 0 or self._copied is None or self._copied.token_ids[depth - 1] == parent_id

    def _bonus(self, depth: int) -> np.float32:
        assert self._copied is not None
        assert self._head.copy_bonus is not None
        return np.float32(self._head.copy_bonus[depth, self._copied.length] / self._temperature)

    def _column(self, depth: int) -> int | None:
        """Of the copied token, if the draft vocabulary has it."""
        if self._copied is None:
            return None
        token_id = self._copied.token_ids[depth]
        column = int(np.searchsorted(self._head.draft_ids, token_id))
        is_known = column < len(self._head.draft_ids) and self._head.draft_ids[column] == token_id
        return column if is_known else None

    def _look_through(self, depth: int) -> _Candidates:
        logits, column = self._logits[depth], self._column(depth)
        split, wanted = len(logits) - self._num_candidates, logits
        if split and column is not None:  # a candidate, however low
            wanted = logits.copy()
            wanted[column] = np.inf
        order = np.argpartition(wanted, split) if split else np.arange(len(logits))
        chosen, rest = order[split:], logits[order[:split]]
        tail = -np.inf
        if split:
            top = float(rest.max())
            tail = top + float(np.log(np.exp(rest - top).sum()))
        head = self._head
        copied = None if column is None else int(np.flatnonzero(chosen == column)[0])
        return _Candidates(head.draft_ids[chosen], logits[chosen], head.out[chosen], tail, copied)


def _entropy(log_probs: np.ndarray) -> float:
    probs = np.exp(log_probs)
    rest = max(1.0 - float(probs.sum()), 1e-9)
    return (-float(probs @ log_probs) - rest * np.log(rest)) / LN2
