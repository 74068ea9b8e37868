"""Which rows of its own sequence each row of a step sees, packed to bits.

    bit j of row r = 1 iff row_starts[s] + j is r or an ancestor of r,   s the sequence of r

int64 [T, words], bit j in word j div 64. Ancestors are found by doubling: after i rounds a row
knows its nearest 2^i - 1 ancestors, so a chain of T rows takes log2(T) rounds, all on the device.
"""

import torch

WORD = 64


def ancestor_bits(parent_rows: torch.Tensor, row_starts: torch.Tensor) -> torch.Tensor:
    """int64 [T, ceil(T / 64)].

    parent_rows: int32 [T] row of the preceding token, -1 = none in the step. row_starts: int32
    [S + 1]. Rows behind the last sequence see themselves only.
    """
    num_rows = len(parent_rows)
    rows = torch.arange(num_rows, device=parent_rows.device)
    sequence = torch.searchsorted(row_starts, rows.to(row_starts.dtype), right=True) - 1
    local = rows - row_starts[sequence]
    bits = torch.zeros((num_rows, -(-num_rows // WORD)), dtype=torch.int64, device=rows.device)
    bits[rows, local // WORD] = torch.ones_like(local) << (local % WORD)
    ancestor = parent_rows.long()
    for _ in range(num_rows.bit_length()):
        known = ancestor >= 0
        nearest = ancestor.clamp(min=0)
        bits = bits | torch.where(known[:, None], bits[nearest], 0)
        ancestor = torch.where(known, ancestor[nearest], -1)
    return bits
