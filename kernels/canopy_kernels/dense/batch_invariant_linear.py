"""A linear whose every output is the same sum in the same order, whatever the other rows are.

    out[r, n] = sum over k of rows[r, k] * weight[n, k] + bias[n]

    rows     [T, K], the last dimension contiguous      float32, bfloat16 or float16
    weight   [N, K], contiguous, bias [N]               the same dtype, as is out [T, N]

K is cut into splits that follow from the shape of the weight alone. A program adds up one split
for a tile of rows and outputs, in tiles of K, in float32; a second kernel adds the splits in order
and the bias, and rounds once. Tiles have fixed sizes and rows behind the last count as 0, so a
row's outputs are equal to the bit alone, in any batch and at any place in it: even the compiled
program is the same. torch.matmul promises no such thing: it picks tiles by the number of rows.
Tolerance against the reference, relative above 1: 1e-5 for float32, 1e-2 for 16-bit types.
"""

from dataclasses import dataclass

import torch
import torch.nn.functional as F  # noqa: N812
import triton
import triton.language as tl

MIN_SPLIT = 512  # shorter sums do not pay for adding their parts
NUM_PROGRAMS = 256  # for one tile of rows: about two for each multiprocessor of a large card
SUM_BLOCK = 1024


@dataclass(frozen=True)
class LinearTiling:
    """How the work of one program is cut; chosen so that no register spills."""

    rows: int
    outs: int
    inner: int
    num_warps: int
    num_stages: int

    @staticmethod
    def of(dtype: torch.dtype) -> "LinearTiling":
        """16-bit inputs fill tensor cores, float32 is multiplied in full precision without."""
        if dtype.itemsize == 2:
            return LinearTiling(rows=64, outs=64, inner=64, num_warps=4, num_stages=3)
        return LinearTiling(rows=16, outs=32, inner=32, num_warps=4, num_stages=2)


def split_of(num_outs: int, inner: int, tiling: LinearTiling) -> int:
    """How much of the inner dimension one program adds up, in whole tiles."""
    num_tiles = triton.cdiv(num_outs, tiling.outs)
    num_splits = min(triton.cdiv(NUM_PROGRAMS, num_tiles), triton.cdiv(inner, MIN_SPLIT))
    return triton.cdiv(triton.cdiv(inner, num_splits), tiling.inner) * tiling.inner


def batch_invariant_linear_reference(
    rows: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None
) -> torch.Tensor:
    """The op with sums in torch's order."""
    wide = None if bias is None else bias.float()
    return F.linear(rows.float(), weight.float(), wide).to(rows.dtype)


def batch_invariant_linear(
    rows: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None
) -> torch.Tensor:
    """[T, N] of the module docstring."""
    (num_rows, inner), num_outs = rows.shape, len(weight)
    assert weight.shape == (num_outs, inner)
    assert weight.is_contiguous()
    assert rows.stride(1) == 1
    assert rows.dtype == weight.dtype
    assert bias is None or (bias.shape == (num_outs,) and bias.is_contiguous())
    out = rows.new_empty((num_rows, num_outs))
    if num_rows == 0:
        return out
    tiling = LinearTiling.of(rows.dtype)
    split = split_of(num_outs, inner, tiling)
    num_splits = triton.cdiv(inner, split)
    parts = rows.new_empty((num_splits, num_rows, num_outs), dtype=torch.float32)
    grid = (triton.cdiv(num_rows, tiling.rows), triton.cdiv(num_outs, tiling.outs), num_splits)
    _multiply_part_kernel[grid](
        (rows, weight, parts),
        num_rows,
        num_outs,
        inner,
        rows.stride(0),
        split,
        tiling.rows,
        tiling.outs,
        tiling.inner,
        num_warps=tiling.num_warps,
        num_stages=tiling.num_stages,
    )
    _add_parts_kernel[(num_rows, triton.cdiv(num_outs, SUM_BLOCK))](
        (parts, weight if bias is None else bias, out),
        num_outs,
        num_splits,
        bias is not None,
        SUM_BLOCK,
    )
    return out


@triton.jit(do_not_specialize=["num_rows"])  # one program for all numbers of rows
def _multiply_part_kernel(
    tensors,  # rows [T, K], weight [N, K], parts float32 [splits, T, N]
    num_rows,
    num_outs,
    inner,
    row_stride,
    split,
    ROWS: tl.constexpr,
    OUTS: tl.constexpr,
    INNER: tl.constexpr,
):
    part = tl.program_id(2)
    rows = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    outs = tl.program_id(1) * OUTS + tl.arange(0, OUTS)
    is_row, is_out = rows < num_rows, outs < num_outs
    row_ptrs = tensors[0] + rows.to(tl.int64)[:, None] * row_stride
    weight_ptrs = tensors[1] + outs.to(tl.int64)[:, None] * inner

    total = tl.zeros((ROWS, OUTS), tl.float32)
    for start in range(part * split, tl.minimum((part + 1) * split, inner), INNER):
        columns = start + tl.arange(0, INNER)
        within = (columns < inner)[None, :]
        left = tl.load(row_ptrs + columns[None, :], is_row[:, None] & within, 0.0)
        right = tl.load(weight_ptrs + columns[None, :], is_out[:, None] & within, 0.0)
        total = tl.dot(left, right.T, total, input_precision="ieee")

    places = (part.to(tl.int64) * num_rows + rows)[:, None] * num_outs + outs[None, :]
    tl.store(tensors[2] + places, total, is_row[:, None] & is_out[None, :])


@triton.jit
def _add_parts_kernel(
    tensors,  # parts float32 [splits, T, N], bias [N], out [T, N]
    num_outs,
    num_splits,
    HAS_BIAS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    row, num_rows = tl.program_id(0).to(tl.int64), tl.num_programs(0)
    outs = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    is_out = outs < num_outs
    total = tl.load(tensors[0] + row * num_outs + outs, is_out, 0.0)
    for part in range(1, num_splits):
        total += tl.load(tensors[0] + (part * num_rows + row) * num_outs + outs, is_out, 0.0)
    if HAS_BIAS:
        total += tl.load(tensors[1] + outs, is_out, 0.0).to(tl.float32)
    tl.store(tensors[2] + row * num_outs + outs, total.to(tensors[2].dtype.element_ty), is_out)
