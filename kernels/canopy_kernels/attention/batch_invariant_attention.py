"""Tree attention in which every row sums over its own path in the order of positions.

The op is that of attention.tree_attention. There a row's ancestors lie where the tree has
them, between nodes that the row does not see, and its context is shared with the other rows; so
the sums of a token differ in their last bits between trees. Here one program takes one row, one
KV head and one split of the row's path: tile i of a split holds positions i * TILE and on, be they
committed or ancestors, and the splits follow from the length of the path. A row's result is then
equal to the bit in any tree, in any batch, and when its ancestors are committed: even the compiled
program is the same.

The price: rows of a tree do not share loads of their context. Each reads its path again, from the
cache of the card at best. Rows behind the last sequence give 0. Tolerance against the reference,
relative above 1: 2e-5 for float32, 2e-2 for 16-bit types.
"""

import math

import torch
import triton
import triton.language as tl

from canopy_kernels.attention.paged_rows import PagedRows
from canopy_kernels.attention.split_kv import (
    MAX_SPLITS,
    check_inputs,
    merged_parts,
    new_parts,
    split_of,
)

MIN_HEADS = 16  # of a matrix product on tensor cores


def tile_of(dtype: torch.dtype) -> tuple[int, dict[str, int]]:
    """Keys of a tile, and how the compiler is told to work; chosen so that no register spills."""
    if dtype.itemsize == 2:
        return 64, {"num_warps": 4, "num_stages": 2}
    return 16, {"num_warps": 4, "num_stages": 1}


def batch_invariant_attention(
    query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, rows: PagedRows, scale: float
) -> torch.Tensor:
    """As `tree_attention`, each row's result equal to the bit in any batch."""
    num_rows, num_heads, head_dim = query.shape
    num_kv_heads = keys.shape[1]
    check_inputs(query, keys, values, rows)
    out = torch.empty_like(query)
    if num_rows == 0:
        return out
    paths, parts = rows.paths, new_parts(query, rows, 0)
    tile, options = tile_of(query.dtype)
    group, block_dim = num_heads // num_kv_heads, triton.next_power_of_2(head_dim)
    _attend_path_kernel[(num_rows, num_kv_heads, len(parts[0]))](
        (query, keys, values),
        (paths.rows, paths.lengths, paths.contexts, paths.sequences, rows.slots),
        rows.block_tables,
        rows.block_tables.shape[1],
        rows.block_size,
        parts,
        scale * math.log2(math.e),
        group,
        head_dim,
        block_dim,
        max(triton.next_power_of_2(group), MIN_HEADS),
        tile,
        **options,
    )
    _merge_path_kernel[(num_rows, num_heads)](
        parts,
        out,
        paths.lengths,
        head_dim,
        block_dim,
        MAX_SPLITS,
    )
    return out


@triton.jit(do_not_specialize=["max_blocks"])  # one program for all batches
def _attend_path_kernel(
    tensors,  # query [T, H, D], keys and values [num_slots, KVH, D]
    paths,  # rows int32 [T, T], lengths, contexts and sequences int32 [T], slots int64 [T]
    tables_ptr,  # int32 [S, max_blocks]
    max_blocks,
    block_size,
    parts,  # out float32 [splits, T, H, D], lse float32 [splits, T, H]
    scale,  # of base-2 scores
    GROUP: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    BLOCK_DIM: tl.constexpr,
    HEADS: tl.constexpr,
    TILE: tl.constexpr,
):
    row, num_rows = tl.program_id(0).to(tl.int64), tl.num_programs(0)
    kv_head, num_kv_heads = tl.program_id(1), tl.num_programs(1)
    length = tl.load(paths[1] + row)
    split = split_of(length)
    begin = tl.program_id(2) * split
    end = tl.minimum(begin + split, length)
    if begin >= end:
        return
    context = tl.load(paths[2] + row)
    table_ptr = tables_ptr + tl.load(paths[3] + row).to(tl.int64) * max_blocks

    members, dims = tl.arange(0, HEADS), tl.arange(0, BLOCK_DIM)
    places = (row * num_kv_heads + kv_head) * GROUP + members  # int64 [HEADS] of query heads
    is_query = (members < GROUP)[:, None] & (dims < HEAD_DIM)[None, :]
    query = tl.load(tensors[0] + places[:, None] * HEAD_DIM + dims[None, :], is_query, 0.0)

    peak = tl.full((HEADS,), float("-inf"), tl.float32)
    total = tl.zeros((HEADS,), tl.float32)
    out = tl.zeros((HEADS, BLOCK_DIM), tl.float32)
    for start in range(begin, end, TILE):
        positions = start + tl.arange(0, TILE)
        within, is_context = positions < end, positions < context
        block = tl.load(table_ptr + positions // block_size, within & is_context, 0).to(tl.int64)
        ancestor = tl.load(paths[0] + row * num_rows + positions - context, within & ~is_context, 0)
        own_slots = tl.load(paths[4] + ancestor, within & ~is_context, 0)
        slots = tl.where(is_context, block * block_size + positions % block_size, own_slots)
        offsets = (slots * num_kv_heads + kv_head)[:, None] * HEAD_DIM + dims[None, :]
        is_key = within[:, None] & (dims < HEAD_DIM)[None, :]
        keys = tl.load(tensors[1] + offsets, is_key, 0.0)
        values = tl.load(tensors[2] + offsets, is_key, 0.0)
        scores = tl.dot(query, keys.T, input_precision="ieee") * scale
        scores = tl.where(within[None, :], scores, float("-inf"))
        new_peak = tl.maximum(peak, tl.max(scores, 1))
        weights = tl.exp2(scores - new_peak[:, None])
        shrink = tl.exp2(peak - new_peak)
        total = total * shrink + tl.sum(weights, 1)
        out = out * shrink[:, None]
        out = tl.dot(weights.to(values.dtype), values, out, input_precision="ieee")
        peak = new_peak

    part_places = tl.program_id(2).to(tl.int64) * num_rows * num_kv_heads * GROUP + places
    tl.store(
        parts[0] + part_places[:, None] * HEAD_DIM + dims[None, :], out / total[:, None], is_query
    )
    tl.store(parts[1] + part_places, peak + tl.log2(total), members < GROUP)


@triton.jit
def _merge_path_kernel(
    parts,  # out float32 [splits, T, H, D], lse float32 [splits, T, H]
    out_ptr,  # [T, H, D]
    lengths_ptr,  # int32 [T]
    HEAD_DIM: tl.constexpr,
    BLOCK_DIM: tl.constexpr,
    BLOCK_PARTS: tl.constexpr,
):
    row = tl.program_id(0)
    num_heads = tl.num_programs(1)
    place = row.to(tl.int64) * num_heads + tl.program_id(1)
    plane = tl.num_programs(0).to(tl.int64) * num_heads
    length = tl.load(lengths_ptr + row)
    num_parts = tl.cdiv(length, split_of(length))
    dims = tl.arange(0, BLOCK_DIM)
    merged = merged_parts(parts, place, plane, num_parts, dims, HEAD_DIM, BLOCK_PARTS)
    tl.store(
        out_ptr + place * HEAD_DIM + dims, merged.to(out_ptr.dtype.element_ty), dims < HEAD_DIM
    )
