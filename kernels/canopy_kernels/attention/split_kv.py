"""Split-KV: how long the parts of a path are, and how their results become one.

    out = sum over parts of 2^(lse - max lse) * part_out / sum over parts of 2^(lse - max lse)

Sums run over a block of fixed size, whatever number of parts a launch makes room for.
"""

import torch
import triton
import triton.language as tl

from canopy_kernels.attention.ancestor_bits import WORD
from canopy_kernels.attention.paged_rows import PagedRows

MIN_SPLIT = 512  # 16 parts at 8k of context: with 8 KV heads about one program an SM of an H100
MAX_SPLITS = 32  # bounds the partial results; longer contexts get longer splits
_MIN_SPLIT = tl.constexpr(MIN_SPLIT)
_MAX_SPLITS = tl.constexpr(MAX_SPLITS)
_WORD = tl.constexpr(WORD)


def check_inputs(
    query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, rows: PagedRows
) -> None:
    """What the kernels rely on without looking."""
    assert query.dtype == keys.dtype == values.dtype
    assert 16 <= query.shape[2] <= 256
    assert query.is_contiguous()
    assert keys.is_contiguous()
    assert values.is_contiguous()
    assert rows.block_tables.is_contiguous()


def new_parts(
    query: torch.Tensor, rows: PagedRows, num_others: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Room for the results of as many splits as the block tables allow, and of other parts.

    Outputs float32 [P, T, H, D] and lse float32 [P, T, H].
    """
    longest = rows.block_tables.shape[1] * rows.block_size
    num_parts = num_others + min(triton.cdiv(longest, MIN_SPLIT), MAX_SPLITS)
    out = query.new_empty((num_parts, *query.shape), dtype=torch.float32)
    return out, query.new_empty(out.shape[:3], dtype=torch.float32)


@triton.jit
def split_of(length):
    """Tokens of one part of so many."""
    even = tl.cdiv(tl.cdiv(length, _MAX_SPLITS), _WORD) * _WORD
    return tl.maximum(even, _MIN_SPLIT)


@triton.jit
def merged_parts(parts, place, plane, num_parts, dims, HEAD_DIM: tl.constexpr, BLOCK: tl.constexpr):
    """float32 [BLOCK_DIM] of the parts of one row and head; 0 without parts.

    parts: out float32 [parts, plane, HEAD_DIM] and lse float32 [parts, plane], plane being the
    number of rows and heads. place: int64, of the row and head. dims: int32 [BLOCK_DIM].
    """
    index = tl.arange(0, BLOCK).to(tl.int64)
    is_part = index < num_parts
    lse = tl.load(parts[1] + index * plane + place, is_part, float("-inf"))
    peak = tl.max(lse, 0)
    shares = tl.exp2(lse - tl.where(num_parts > 0, peak, 0.0))
    offsets = (index * plane + place)[:, None] * HEAD_DIM + dims[None, :]
    is_out = is_part[:, None] & (dims < HEAD_DIM)[None, :]
    part_out = tl.load(parts[0] + offsets, is_out, 0.0)
    total = tl.maximum(tl.sum(shares, 0), 1.0)  # the largest share is 1; a padded row has none
    return tl.sum(shares[:, None] * part_out, 0) / total
