"""Where the rows of a step and their paths lie in a paged KV cache."""

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch

from canopy_kernels.attention.ancestor_bits import ancestor_bits
from canopy_kernels.attention.paths import Paths
from canopy_kernels.attention.tree_mask import TreeMask
from canopy_kernels.attention.work_list import WorkList, WorkShape


@dataclass(frozen=True)
class PagedRows:
    """A step's rows; all tensors on one device.

    Rows of sequence s are `row_starts[s] .. row_starts[s + 1]`, parents before children.
    """

    slots: torch.Tensor  # int64 [T]
    parent_rows: torch.Tensor  # int32 [T] row of the preceding token; -1 = the committed context
    row_starts: torch.Tensor  # int32 [S + 1]
    context_lengths: torch.Tensor  # int32 [S]
    block_tables: torch.Tensor  # int32 [S, max_blocks]
    block_size: int

    @cached_property
    def arrays(self) -> tuple[Any, ...]:
        """The same on the CPU, as NumPy arrays; built once for all layers."""
        tensors = (
            self.slots,
            self.parent_rows,
            self.row_starts,
            self.context_lengths,
            self.block_tables,
        )
        return (*(tensor.numpy() for tensor in tensors), self.block_size)

    @cached_property
    def longest_path(self) -> int:
        """No path has more tokens than this."""
        return int((self.context_lengths + self.row_starts.diff()).max())

    @cached_property
    def ancestor_bits(self) -> torch.Tensor:
        """int64 [T, words] of canopy_kernels.attention.ancestor_bits; built once for all layers."""
        return ancestor_bits(self.parent_rows, self.row_starts)

    @cached_property
    def tree_mask(self) -> TreeMask:
        """Built once for all layers."""
        return TreeMask.of(self.parent_rows, self.row_starts)

    def work_list(self, shape: WorkShape) -> WorkList:
        """Built once for all layers of one shape."""
        if shape not in self._work_lists:
            lengths, num_rows = self.context_lengths, len(self.parent_rows)
            self._work_lists[shape] = WorkList.of(self.row_starts, lengths, num_rows, shape)
        return self._work_lists[shape]

    @cached_property
    def _work_lists(self) -> dict[WorkShape, WorkList]:
        return {}

    @cached_property
    def paths(self) -> Paths:
        """Built once for all layers."""
        return Paths.of(self.ancestor_bits, self.row_starts, self.context_lengths)
