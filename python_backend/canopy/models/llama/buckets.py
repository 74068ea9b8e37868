"""Sizes that steps are padded to, so that a few programs compute steps of any size.

A padded row has no slot, so nothing is written for it, and follows the last sequence, so it sees
nothing but itself; a padded sequence has no rows. What a step's own rows compute does not change.
"""

from bisect import bisect_left
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812

from canopy.config import MAX_GRAPH_ROWS
from canopy.models.step_batch import StepBatch

# Fine where a step is small, since a small step's padding costs the largest share.
_NUM_ROWS = (1, 2, 4, 8, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, MAX_GRAPH_ROWS)


@dataclass(frozen=True, order=True)
class Bucket:
    """A size of steps."""

    num_rows: int
    num_sequences: int


@dataclass(frozen=True)
class Buckets:
    """All sizes up to a limit; `num_blocks` is the width of their block tables."""

    max_rows: int
    max_sequences: int
    num_blocks: int

    @property
    def all(self) -> list[Bucket]:
        """The sizes that some step needs, largest first."""
        row_sizes = sorted({min(size, self.max_rows) for size in _NUM_ROWS})
        num_powers = (self.max_sequences - 1).bit_length()
        sequence_sizes = [2**power for power in range(num_powers + 1)]
        pairs = [
            Bucket(num_rows, num_sequences)
            for num_rows in row_sizes
            for num_sequences in sequence_sizes
            if num_sequences // 2 < num_rows  # every sequence of a step has a row
        ]
        return sorted(pairs, reverse=True)

    def bucket_of(self, batch: StepBatch) -> Bucket | None:
        """The least size that holds a step; None for a step beyond the limits."""
        num_rows, num_sequences = len(batch.token_ids), len(batch.context_lengths)
        if num_rows > self.max_rows or not 0 < num_sequences <= self.max_sequences:
            return None
        if batch.block_tables.shape[1] > self.num_blocks:
            return None
        size = _NUM_ROWS[bisect_left(_NUM_ROWS, num_rows)]
        return Bucket(min(size, self.max_rows), 2 ** (num_sequences - 1).bit_length())

    def pad(self, batch: StepBatch, bucket: Bucket) -> StepBatch:
        """The step at the size of a bucket, with as many logit rows as rows."""
        num_rows, num_sequences = bucket.num_rows, bucket.num_sequences
        last = int(batch.row_starts[-1])
        height = num_sequences - len(batch.block_tables)
        width = self.num_blocks - batch.block_tables.shape[1]
        return StepBatch(
            token_ids=_longer(batch.token_ids, num_rows, 0),
            positions=_longer(batch.positions, num_rows, 0),
            slots=_longer(batch.slots, num_rows, -1),
            parent_rows=_longer(batch.parent_rows, num_rows, -1),
            row_starts=_longer(batch.row_starts, num_sequences + 1, last),
            context_lengths=_longer(batch.context_lengths, num_sequences, 0),
            block_tables=F.pad(batch.block_tables, (0, width, 0, height), value=-1),
            logit_rows=_longer(batch.logit_rows, num_rows, 0),
        )

    def empty(self, bucket: Bucket) -> StepBatch:
        """A step of padding alone."""
        none = np.zeros(0, np.int64)
        long, short = torch.from_numpy(none), torch.from_numpy(none.astype(np.int32))
        tables = torch.zeros((0, self.num_blocks), dtype=torch.int32)
        starts = torch.zeros(1, dtype=torch.int32)
        return self.pad(StepBatch(long, long, long, short, starts, short, tables, long), bucket)


def _longer(array: torch.Tensor, size: int, filling: int) -> torch.Tensor:
    return F.pad(array, (0, size - len(array)), value=filling)
