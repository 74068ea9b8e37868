"""The Triton-language kernels of canopy_kernels.attention.tree_attention: split-KV in two launches.

    part 0            the step's own rows of the sequence, under its ancestor bits
    part 1 + i        tokens i * split .. (i + 1) * split of its committed context
    out[r, h]         the parts' results, weighted by 2^(lse - max lse) and normalized

A program takes one part, one KV head and a tile of the sequence's rows, packed with the query
heads that share the KV head: entry m of a tile is row m div group, head m mod group. Tiles are
ragged: the launch knows only that all sequences together need at most T * group / TILE_ROWS + S.

A sequence's split is a function of its own context length, and the tiles are one of the dtype and
head_dim, so a row's result does not depend on the batch. Rows behind the last sequence give 0.
Scores and sums are float32, and float32 inputs are multiplied in full precision. Tolerance against
the reference, relative above 1: 2e-5 for float32, 1e-2 for 16-bit types, whose softmax weights are
rounded before they meet the values.
"""

import math
from dataclasses import dataclass

import torch
import triton
import triton.language as tl

from canopy_kernels.attention.ancestor_bits import WORD
from canopy_kernels.attention.paged_rows import PagedRows
from canopy_kernels.attention.split_kv import (
    MAX_SPLITS,
    check_inputs,
    merged_parts,
    new_parts,
    split_of,
)

_WORD = tl.constexpr(WORD)


@dataclass(frozen=True)
class Tiling:
    """How the work of one program is cut; chosen so that no register spills."""

    rows: int
    keys: int
    num_warps: int
    num_stages: int

    @staticmethod
    def of(dtype: torch.dtype, head_dim: int) -> "Tiling":
        """16-bit inputs fill tensor cores (64 rows are the least on Hopper), float32 cannot."""
        if dtype.itemsize == 2:
            keys = 64 if head_dim <= 128 else 32
            return Tiling(rows=64, keys=keys, num_warps=4 if head_dim <= 64 else 8, num_stages=2)
        return Tiling(rows=16, keys=16, num_warps=4 if head_dim <= 128 else 8, num_stages=1)


def launch_tree_attention(
    query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, rows: PagedRows, scale: float
) -> torch.Tensor:
    """`canopy_kernels.attention.tree_attention.tree_attention` by the Triton-language kernels."""
    num_rows, num_heads, head_dim = query.shape
    num_kv_heads = keys.shape[1]
    check_inputs(query, keys, values, rows)
    num_sequences, max_blocks = rows.block_tables.shape
    group = num_heads // num_kv_heads
    parts = new_parts(query, rows, num_others=1)
    out = torch.empty_like(query)
    if num_rows == 0:
        return out
    tiling = Tiling.of(query.dtype, head_dim)
    sequences = (rows.row_starts, rows.context_lengths, num_sequences)
    num_tiles = triton.cdiv(num_rows * group, tiling.rows) + num_sequences
    block_sequences = triton.next_power_of_2(num_sequences)
    block_dim = triton.next_power_of_2(head_dim)
    _attend_part_kernel[(num_tiles, num_kv_heads, len(parts[0]))](
        (query, keys, values),
        sequences,
        (rows.block_tables, max_blocks, rows.block_size),
        (rows.ancestor_bits, rows.ancestor_bits.stride(0)),
        (*parts, num_rows),
        scale * math.log2(math.e),
        group,
        head_dim,
        block_dim,
        block_sequences,
        tiling.rows,
        tiling.keys,
        num_warps=tiling.num_warps,
        num_stages=tiling.num_stages,
    )
    _merge_parts_kernel[(num_rows, num_heads)](
        parts,
        out,
        sequences,
        head_dim,
        block_dim,
        block_sequences,
        triton.next_power_of_2(1 + MAX_SPLITS),
    )
    return out


@triton.jit
def _attend_part_kernel(  # type: ignore[no-untyped-def]
    tensors,  # query [T, H, D], keys and values [num_slots, KVH, D]
    sequences,  # row_starts int32 [S + 1], context_lengths int32 [S], S
    blocks,  # tables int32 [S, max_blocks], max_blocks, block_size
    ancestors,  # bits int64 [T, words], words
    parts,  # out float32 [1 + splits, T, H, D], lse float32 [1 + splits, T, H], T
    scale,  # of base-2 scores
    GROUP: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    BLOCK_DIM: tl.constexpr,
    BLOCK_SEQUENCES: tl.constexpr,
    TILE_ROWS: tl.constexpr,
    TILE_KEYS: tl.constexpr,
):
    kv_head = tl.program_id(1)
    part = tl.program_id(2)
    sequence, tile = _sequence_of_tile(sequences, GROUP, TILE_ROWS, BLOCK_SEQUENCES)
    if sequence >= sequences[2]:
        return
    first_row = tl.load(sequences[0] + sequence).to(tl.int64)
    num_own = (tl.load(sequences[0] + sequence + 1) - first_row).to(tl.int32)
    context = tl.load(sequences[1] + sequence)
    split = split_of(context)
    begin = tl.where(part == 0, context, (part - 1) * split)
    end = tl.where(part == 0, context + num_own, tl.minimum(begin + split, context))
    if begin >= end:
        return

    packed = tile * TILE_ROWS + tl.arange(0, TILE_ROWS)
    rows = first_row + packed // GROUP
    is_row = packed // GROUP < num_own
    heads = kv_head * GROUP + packed % GROUP
    num_heads = tl.num_programs(1) * GROUP
    places = rows * num_heads + heads  # int64 [TILE_ROWS]
    dims = tl.arange(0, BLOCK_DIM)
    is_query = is_row[:, None] & (dims < HEAD_DIM)[None, :]
    query = tl.load(tensors[0] + places[:, None] * HEAD_DIM + dims[None, :], is_query, 0.0)
    table_ptr = blocks[0] + sequence.to(tl.int64) * blocks[1]

    peak = tl.full((TILE_ROWS,), float("-inf"), tl.float32)
    total = tl.zeros((TILE_ROWS,), tl.float32)
    out = tl.zeros((TILE_ROWS, BLOCK_DIM), tl.float32)
    for start in range(begin, end, TILE_KEYS):
        indices = start + tl.arange(0, TILE_KEYS)
        within = indices < end
        block = tl.load(table_ptr + indices // blocks[2], within, 0).to(tl.int64)
        slots = block * blocks[2] + indices % blocks[2]
        offsets = (slots * tl.num_programs(1) + kv_head)[:, None] * HEAD_DIM + dims[None, :]
        is_key = within[:, None] & (dims < HEAD_DIM)[None, :]
        keys = tl.load(tensors[1] + offsets, is_key, 0.0)
        values = tl.load(tensors[2] + offsets, is_key, 0.0)
        scores = tl.dot(query, keys.T, input_precision="ieee") * scale
        visible = is_row[:, None] & within[None, :]
        if part == 0:
            visible = visible & _sees(ancestors, rows, is_row, start - context, TILE_KEYS)
        scores = tl.where(visible, scores, float("-inf"))
        new_peak = tl.maximum(peak, tl.max(scores, 1))
        base = tl.where(new_peak == float("-inf"), 0.0, new_peak)  # nothing seen yet
        weights = tl.exp2(scores - base[:, None])
        shrink = tl.exp2(peak - base)
        total = total * shrink + tl.sum(weights, 1)
        out = out * shrink[:, None]
        out = tl.dot(weights.to(values.dtype), values, out, input_precision="ieee")
        peak = new_peak

    part_places = part.to(tl.int64) * parts[2] * num_heads + places
    tl.store(
        parts[0] + part_places[:, None] * HEAD_DIM + dims[None, :], out / total[:, None], is_query
    )
    tl.store(parts[1] + part_places, peak + tl.log2(total), is_row)


@triton.jit
def _sequence_of_tile(  # type: ignore[no-untyped-def]
    sequences, GROUP: tl.constexpr, TILE_ROWS: tl.constexpr, BLOCK_SEQUENCES: tl.constexpr
):
    """Sequence and number within it of the program's tile; past the last, a sequence >= S."""
    indices = tl.arange(0, BLOCK_SEQUENCES)
    within = indices < sequences[2]
    starts = tl.load(sequences[0] + indices, within, 0)
    ends = tl.load(sequences[0] + 1 + indices, within, 0)
    tile_ends = tl.cumsum(tl.cdiv((ends - starts) * GROUP, TILE_ROWS), 0)
    is_before = (tile_ends <= tl.program_id(0)) & within
    sequence = tl.sum(is_before.to(tl.int32), 0)
    return sequence, tl.program_id(0) - tl.max(tl.where(is_before, tile_ends, 0), 0)


@triton.jit
def _sees(ancestors, rows, is_row, first_key, TILE_KEYS: tl.constexpr):  # type: ignore[no-untyped-def]
    """bool [TILE_ROWS, TILE_KEYS]: is own row `first_key + column` on the path of the row?"""
    words = tl.load(ancestors[0] + rows * ancestors[1] + first_key // _WORD, is_row, 0)
    shifts = (first_key % _WORD + tl.arange(0, TILE_KEYS)).to(tl.int64)
    return ((words[:, None] >> shifts[None, :]) & 1) != 0


@triton.jit
def _merge_parts_kernel(  # type: ignore[no-untyped-def]
    parts,  # out float32 [1 + splits, T, H, D], lse float32 [1 + splits, T, H]
    out_ptr,  # [T, H, D]
    sequences,  # row_starts int32 [S + 1], context_lengths int32 [S], S
    HEAD_DIM: tl.constexpr,
    BLOCK_DIM: tl.constexpr,
    BLOCK_SEQUENCES: tl.constexpr,
    BLOCK_PARTS: tl.constexpr,
):
    row = tl.program_id(0)
    num_heads = tl.num_programs(1)
    place = row.to(tl.int64) * num_heads + tl.program_id(1)
    plane = tl.num_programs(0).to(tl.int64) * num_heads
    indices = tl.arange(0, BLOCK_SEQUENCES)
    ends = tl.load(sequences[0] + 1 + indices, indices < sequences[2], 2147483647)
    sequence = tl.sum((ends <= row).to(tl.int32), 0)
    context = tl.load(sequences[1] + sequence, sequence < sequences[2], 0)
    num_parts = tl.where(sequence < sequences[2], 1 + tl.cdiv(context, split_of(context)), 0)

    dims = tl.arange(0, BLOCK_DIM)
    merged = merged_parts(parts, place, plane, num_parts, dims, HEAD_DIM, BLOCK_PARTS)
    tl.store(
        out_ptr + place * HEAD_DIM + dims, merged.to(out_ptr.dtype.element_ty), dims < HEAD_DIM
    )
