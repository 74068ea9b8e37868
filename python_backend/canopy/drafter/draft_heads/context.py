"""Which positions of each sequence a draft head has in its paged cache.

The row of position i is made of the target's hidden states at i, which depend on all tokens up to
i; an EAGLE-3 row reads the token behind as well. Rows are shared by sequences whose tokens are
alike up to there. Where states of earlier positions never come, a sequence's rows begin later.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from canopy.config import CacheConfig
from canopy.drafter.source import DraftSequence
from canopy.kv_cache.block_manager import BlockManager, block_digest
from canopy.models.step_batch import Segment
from canopy.protocol.hidden_states import HiddenStates


@dataclass(frozen=True)
class ContextRows:
    """Rows of one sequence to compute in this step."""

    sequence_id: int
    token_ids: np.ndarray  # int64 [n] that name the rows: an EAGLE-3 row's is the token behind
    states: np.ndarray  # float16 [n, states * E]
    segment: Segment  # the rows as a chain, the last one's output wanted


class HeadContexts:
    """The books of a head's cache; the cache itself is the head's."""

    def __init__(self, cache: CacheConfig, reads_next_token: bool) -> None:
        """reads_next_token: a row is named by the token behind its position."""
        self.blocks = BlockManager(cache.num_blocks, cache.block_size, cache.prefix_reuse)
        self._shift = int(reads_next_token)
        self._origins: dict[int, int] = {}  # position of each sequence's first row
        self._pending: dict[int, HiddenStates] = {}  # states whose rows are not computed yet

    def add(self, hidden_states: dict[int, HiddenStates]) -> None:
        """States that have come, by sequence."""
        for sequence_id, part in hidden_states.items():
            known = self._pending.get(sequence_id)
            self._pending[sequence_id] = known.joined(part) if known else part

    def plan(self, sequences: Sequence[DraftSequence], max_rows: int) -> list[ContextRows]:
        """Rows to compute, `max_rows` at most. Short gaps go first: a long prompt delays no other.

        A sequence that finds no block for its rows waits.
        """
        plans = list[ContextRows]()
        missing = [(sequence, self._missing(sequence)) for sequence in sequences]
        for sequence, states in sorted(missing, key=lambda pair: len(pair[1])):
            states = states[:max_rows]
            if len(states) and self.reserve(sequence, len(states)):
                plans.append(self._rows(sequence, states))
                max_rows -= len(states)
        return plans

    def commit(self, rows: ContextRows) -> None:
        """They are computed."""
        self.blocks.commit(rows.sequence_id, rows.token_ids)

    def reserve(self, sequence: DraftSequence, num_rows: int) -> bool:
        """Room behind the rows that are there; False where there is none."""
        length = self.length(sequence.sequence_id)
        return self.blocks.reserve(sequence.sequence_id, length + num_rows)

    def reaches_anchor(self, sequence: DraftSequence) -> bool:
        """Whether every position before the anchor that can have a row has one."""
        if sequence.sequence_id not in self._origins:
            return False
        return self._end(sequence.sequence_id) == len(sequence.token_ids) - 1 > 0

    def length(self, sequence_id: int) -> int:
        """Rows of a sequence that are computed."""
        return self.blocks.num_committed(sequence_id)

    def slots(self, sequence_id: int) -> np.ndarray:
        """int64 [length] where the rows of a sequence lie."""
        size, rows = self.blocks.block_size, np.arange(self.length(sequence_id))
        table = np.array(self.blocks.block_table(sequence_id), np.int64)
        return table[rows // size] * size + rows % size

    def finish(self, sequence_id: int) -> None:
        """Drop a sequence; unknown ids do nothing."""
        self.blocks.finish(sequence_id)
        self._origins.pop(sequence_id, None)
        self._pending.pop(sequence_id, None)

    def _end(self, sequence_id: int) -> int:
        return self._origins[sequence_id] + self.length(sequence_id)

    def _missing(self, sequence: DraftSequence) -> np.ndarray:
        """float16 [n, states * E] of the positions that follow the computed ones."""
        sequence_id = sequence.sequence_id
        pending = self._pending.get(sequence_id)
        if pending is None:
            return np.zeros((0, 0), np.float16)
        if sequence_id not in self._origins:
            self._start(sequence, 0)
        if pending.start > self._end(sequence_id):
            self._start(sequence, pending.start)
        end = self._end(sequence_id)
        return pending.states[end - pending.start : len(sequence.token_ids) - 1 - pending.start]

    def _start(self, sequence: DraftSequence, origin: int) -> None:
        first = origin + self._shift
        salt = block_digest(b"", sequence.token_ids[:first]) if first else b""
        self.blocks.start(sequence.sequence_id, sequence.token_ids[first:], salt)
        self._origins[sequence.sequence_id] = origin

    def _rows(self, sequence: DraftSequence, states: np.ndarray) -> ContextRows:
        first, num = self._end(sequence.sequence_id) + self._shift, len(states)
        token_ids = np.array(sequence.token_ids[first : first + num], np.int64)
        segment = Segment(
            context_length=self.length(sequence.sequence_id),
            block_table=self.blocks.block_table(sequence.sequence_id),
            token_ids=token_ids,
            parents=np.arange(-1, num - 1),
            logit_rows=np.array([num - 1]),
        )
        return ContextRows(sequence.sequence_id, token_ids, states, segment)
