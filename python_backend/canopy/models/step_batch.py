"""What one forward pass computes: rows of several sequences, each a chain followed by a tree.

Rows of sequence s are `row_starts[s] .. row_starts[s + 1]`, parents before children. Row r sits
at logical index `context_lengths[s] + (r - row_starts[s])` of its sequence, and `slots[r]` is
where the KV cache keeps it; its rope position is `context_lengths[s] + depth`. A row sees the
whole committed context of its sequence, its ancestors in the step, and itself.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields

import numpy as np
import torch

from canopy_kernels.attention.paged_rows import PagedRows
from canopy_kernels.host_to_device import copy_packed

_LARGEST_HALF = float(np.finfo(np.float16).max)


@dataclass(frozen=True)
class StepBatch:
    """Inputs of one forward, on one device: the model's, or the CPU."""

    token_ids: torch.Tensor  # int64 [T]
    positions: torch.Tensor  # int64 [T]
    slots: torch.Tensor  # int64 [T]
    parent_rows: torch.Tensor  # int32 [T] row of the preceding token; -1 = the committed context
    row_starts: torch.Tensor  # int32 [S + 1]
    context_lengths: torch.Tensor  # int32 [S] committed tokens in the KV cache
    block_tables: torch.Tensor  # int32 [S, max_blocks], padded with -1
    logit_rows: torch.Tensor  # int64 [L] rows whose logits are wanted, ascending

    def to(self, device: str) -> "StepBatch":
        """The same on a device, sent in one copy from the CPU."""
        if self.token_ids.device == torch.device(device):
            return self
        names = (field.name for field in fields(self))
        return StepBatch(**copy_packed(dict(zip(names, self.arrays, strict=True)), device))

    def paged_rows(self, block_size: int) -> PagedRows:
        """Where the rows and their paths lie in a cache of such blocks."""
        return PagedRows(
            self.slots,
            self.parent_rows,
            self.row_starts,
            self.context_lengths,
            self.block_tables,
            block_size,
        )

    @property
    def arrays(self) -> list[np.ndarray]:
        """The fields in order, of a batch on the CPU."""
        return [getattr(self, field.name).numpy() for field in fields(self)]


@dataclass(frozen=True)
class AuxHiddenStates:
    """Where a forward leaves hidden states of all its rows.

    Layer k stands for the input of layer k before its norm: 0 is the embedding, and k is less than
    the number of layers.
    """

    layers: tuple[int, ...]  # ascending
    states: torch.Tensor  # float32 [T, len(layers), E], on the model's device; overwritten

    @staticmethod
    def of(
        layers: Sequence[int], batch: StepBatch, hidden_size: int, device: str | None = None
    ) -> "AuxHiddenStates":
        """Room for the states of one step, on the model's device if that is not the batch's."""
        shape = len(batch.token_ids), len(layers), hidden_size
        states = torch.empty(shape, dtype=torch.float32, device=device or batch.token_ids.device)
        return AuxHiddenStates(tuple(layers), states)


def to_float16(states: torch.Tensor) -> np.ndarray:
    """float16 on the host, of states anywhere; those beyond its range are cut to it."""
    return states.clamp(-_LARGEST_HALF, _LARGEST_HALF).half().cpu().numpy()


@dataclass(frozen=True)
class Segment:
    """The rows of one sequence in a step."""

    context_length: int
    block_table: Sequence[int]  # covers context_length + number of rows
    token_ids: np.ndarray  # int [rows]
    parents: np.ndarray  # int [rows] local row of the preceding token; -1 = the context
    logit_rows: np.ndarray  # int [k] local rows, ascending

    @property
    def depths(self) -> np.ndarray:
        """int64 [rows] distance to the committed context; 0 for a row right after it."""
        depths = np.zeros(len(self.parents), np.int64)
        for row, parent in enumerate(self.parents):
            if parent >= 0:
                depths[row] = depths[parent] + 1
        return depths

    def slots(self, block_size: int) -> np.ndarray:
        """int64 [rows] KV slots of the rows."""
        logical = self.context_length + np.arange(len(self.token_ids))
        table = np.asarray(self.block_table, np.int64)
        return table[logical // block_size] * block_size + logical % block_size


def assemble_step(segments: Sequence[Segment], block_size: int, device: str = "cpu") -> StepBatch:
    """Pack segments into one StepBatch, in order."""
    sizes = [len(segment.token_ids) for segment in segments]
    starts = np.concatenate(([0], np.cumsum(sizes))).astype(np.int32)
    tables = np.full((len(segments), max(len(s.block_table) for s in segments)), -1, np.int32)
    for table, segment in zip(tables, segments, strict=True):
        table[: len(segment.block_table)] = segment.block_table

    def joined(parts: Iterable[np.ndarray], dtype: type) -> torch.Tensor:
        return torch.from_numpy(np.concatenate(list(parts)).astype(dtype))

    offsets = [int(start) for start in starts[:-1]]
    pairs = list(zip(segments, offsets, strict=True))
    return StepBatch(
        token_ids=joined((s.token_ids for s in segments), np.int64),
        positions=joined((s.context_length + s.depths for s in segments), np.int64),
        slots=joined((s.slots(block_size) for s in segments), np.int64),
        parent_rows=joined(
            (np.where(s.parents < 0, -1, s.parents + o) for s, o in pairs), np.int32
        ),
        row_starts=torch.from_numpy(starts),
        context_lengths=joined([np.array([s.context_length for s in segments])], np.int32),
        block_tables=torch.from_numpy(tables),
        logit_rows=joined((s.logit_rows + o for s, o in pairs), np.int64),
    ).to(device)
