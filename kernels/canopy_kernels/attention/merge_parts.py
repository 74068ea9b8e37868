"""The kernel that merges the parts of tiles whose contexts were split.

    out = sum over parts of 2^(lse - max lse) * part_out / sum over parts of 2^(lse - max lse)

A program merges MERGE_ROWS packed rows of a tile; those of tiles that were not split end at once.
"""

import triton
import triton.language as tl

MERGE_ROWS = 16


@triton.jit
def merge_parts_kernel(
    parts,
    out_ptr,  # [T, H, D]
    work,
    GROUP: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    BLOCK_DIM: tl.constexpr,
    TILE_ROWS: tl.constexpr,
    MERGE_ROWS: tl.constexpr,
):
    tile, kv_head, num_kv_heads = tl.program_id(0), tl.program_id(1), tl.num_programs(1)
    if tile >= tl.load(work.counts + 1):
        return
    first_item = tl.load(work.tiles + tile)
    num_parts = tl.load(work.num_parts + first_item)
    if num_parts == 1:
        return
    entries = tl.program_id(2) * MERGE_ROWS + tl.arange(0, MERGE_ROWS)
    packed = tl.load(work.first_entries + first_item) + entries
    is_row = packed // GROUP < tl.load(work.num_rows + first_item)
    dims = tl.arange(0, BLOCK_DIM)
    is_out = is_row[:, None] & (dims < HEAD_DIM)[None, :]

    peak = tl.full((MERGE_ROWS,), float("-inf"), tl.float32)
    total = tl.zeros((MERGE_ROWS,), tl.float32)
    out = tl.zeros((MERGE_ROWS, BLOCK_DIM), tl.float32)
    for part in range(0, num_parts):
        part_item = (first_item + part) * num_kv_heads + kv_head
        part_rows = part_item * TILE_ROWS + entries
        lse = tl.load(parts.lse + part_rows, is_row, float("-inf"))
        part_out = tl.load(parts.out + part_rows[:, None] * HEAD_DIM + dims[None, :], is_out, 0.0)
        new_peak = tl.maximum(peak, lse)
        base = tl.where(new_peak == float("-inf"), 0.0, new_peak)
        share, shrink = tl.exp2(lse - base), tl.exp2(peak - base)
        total = total * shrink + share
        out = out * shrink[:, None] + part_out * share[:, None]
        peak = new_peak

    rows = tl.load(work.first_rows + first_item).to(tl.int64) + packed // GROUP
    heads = kv_head * GROUP + packed % GROUP
    places = (rows * num_kv_heads * GROUP + heads)[:, None] * HEAD_DIM + dims[None, :]
    merged = out / tl.where(total > 0.0, total, 1.0)[:, None]
    tl.store(out_ptr + places, merged.to(out_ptr.dtype.element_ty), is_out)
