"""The path of every row of a step, token by token, made on the device.

rows[r, j]    the row of the step that is r's ancestor at depth j, or r itself; j below its depth
lengths[r]    committed context + ancestors + 1; 0 behind the last sequence
"""

from dataclasses import dataclass

import torch

from canopy_kernels.attention.ancestor_bits import WORD


@dataclass(frozen=True)
class Paths:
    """The paths of T rows."""

    rows: torch.Tensor  # int32 [T, T]; beyond a path's end anything
    lengths: torch.Tensor  # int32 [T]
    contexts: torch.Tensor  # int32 [T] committed tokens of the row's sequence
    sequences: torch.Tensor  # int32 [T]

    @staticmethod
    def of(bits: torch.Tensor, row_starts: torch.Tensor, context_lengths: torch.Tensor) -> "Paths":
        """bits: int64 [T, words] of attention.ancestor_bits; the others int32 [S + 1], [S]."""
        num_rows, num_sequences = len(bits), len(context_lengths)
        columns = torch.arange(num_rows, device=bits.device)
        sequences = torch.searchsorted(row_starts, columns.to(row_starts.dtype), right=True) - 1
        is_sees = (bits[:, columns // WORD] >> (columns % WORD)) & 1  # [T, T] of local columns
        depths = is_sees.sum(dim=1) - 1
        seen = (row_starts[sequences].long()[:, None] + columns).clamp(max=max(num_rows - 1, 0))
        places = torch.where(is_sees != 0, depths[seen], num_rows)  # the last column is dropped
        rows = torch.zeros((num_rows, num_rows + 1), dtype=torch.int32, device=bits.device)
        rows.scatter_(1, places, seen.int())
        is_own = sequences < num_sequences
        sequences = torch.where(is_own, sequences, 0)
        contexts = context_lengths[sequences]
        lengths = torch.where(is_own, contexts + depths + 1, 0)
        return Paths(rows[:, :num_rows].contiguous(), lengths.int(), contexts, sequences.int())
