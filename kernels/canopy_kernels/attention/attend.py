"""The kernel that attends: one program works on one item of a work list after the other.

An item is a tile of packed rows and a range of keys (see canopy_kernels.attention.work_list). Keys
come in tiles, each within one block of the cache, in three runs:

    head    only with a sliding window: keys that have left the window of some rows
    middle  keys that every row of the tile sees, own rows of a prompt included: no mask at all
    tail    the end of the context, and own rows under canopy_kernels.attention.tree_mask

Nearly all keys are in the middle. There the table entry of the next tile is fetched a tile ahead,
so that the copies of keys and values are under way while the tile before them is computed.
"""

import math
from typing import Any, NamedTuple

import triton
import triton.language as tl

from canopy_kernels.attention.tree_mask import WORD, WORDS

_LOG2_E, _TWO_LOG2_E = tl.constexpr(math.log2(math.e)), tl.constexpr(2 * math.log2(math.e))
_WORD, _WORDS, _MANY_WORDS = tl.constexpr(WORD), tl.constexpr(WORDS), tl.constexpr(1 << 24)


class Tensors(NamedTuple):
    """What is read and written, by row and head or by slot and head."""

    query: Any  # [T, H, D]
    key: Any  # [num_slots, KVH, D]
    value: Any  # [num_slots, KVH, D]
    out: Any  # [T, H, D]
    sinks: Any  # float32 [H], or anything where there are none


class Parts(NamedTuple):
    """Results of the items of tiles that are split, by item and KV head."""

    out: Any  # float32 [items, KVH, TILE_ROWS, D]
    lse: Any  # float32 [items, KVH, TILE_ROWS], base 2


@triton.jit(do_not_specialize=["num_kv_heads", "table_width"])
def attend_kernel(
    tensors,
    work,
    mask,
    tables_ptr,  # int32 [S, table_width] block tables of the sequences
    table_width,
    parts,
    num_kv_heads,
    scale,  # of base-2 scores
    GROUP: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    BLOCK_DIM: tl.constexpr,
    TILE_ROWS: tl.constexpr,
    TILE_KEYS: tl.constexpr,
    PAGE: tl.constexpr,
    WINDOW: tl.constexpr,  # 0: none
    SOFT_CAP: tl.constexpr,  # of base-2 scores; 0: none
    HAS_SINKS: tl.constexpr,
):
    dims = tl.arange(0, BLOCK_DIM)
    num_items = tl.load(work.counts) * num_kv_heads
    for index in range(tl.program_id(0), num_items, tl.num_programs(0)):
        item, kv_head = index // num_kv_heads, index % num_kv_heads
        first_row, num_own = tl.load(work.first_rows + item), tl.load(work.num_rows + item)
        sequence, context = tl.load(work.sequences + item), tl.load(work.contexts + item)
        begin, end = tl.load(work.begins + item), tl.load(work.ends + item)
        part, num_parts = tl.load(work.parts + item), tl.load(work.num_parts + item)

        packed = tl.load(work.first_entries + item) + tl.arange(0, TILE_ROWS)
        local = packed // GROUP
        is_row = local < num_own
        heads = kv_head * GROUP + packed % GROUP
        first_place = first_row.to(tl.int64) * num_kv_heads * GROUP * HEAD_DIM
        places = (local * num_kv_heads * GROUP + heads)[:, None] * HEAD_DIM + dims[None, :]
        is_query = is_row[:, None] & (dims < HEAD_DIM)[None, :]
        query = tl.load(tensors.query + first_place + places, is_query, 0.0)

        peak = tl.full((TILE_ROWS,), float("-inf"), tl.float32)
        total = tl.zeros((TILE_ROWS,), tl.float32)
        out = tl.zeros((TILE_ROWS, BLOCK_DIM), tl.float32)
        if HAS_SINKS:
            has_sink = is_row & (packed * 0 + part == num_parts - 1)
            sinks = tl.load(tensors.sinks + heads, has_sink, float("-inf"))
            peak, total = sinks * _LOG2_E, tl.where(has_sink, 1.0, 0.0)

        entries = tl.load(mask.entries + first_row + local, is_row, 2147483646 - context)
        middle_end = tl.minimum(context + tl.min(entries, 0) + 1, end) // TILE_KEYS * TILE_KEYS
        middle_end = tl.maximum(middle_end, begin)
        middle = begin
        rows = (first_row, local, is_row, context, tl.load(mask.chains + sequence), end)
        table_ptr = tables_ptr + sequence.to(tl.int64) * table_width
        stride = num_kv_heads * HEAD_DIM
        spots = kv_head * HEAD_DIM + tl.arange(0, TILE_KEYS)[:, None] * stride + dims[None, :]
        is_dim = (dims < HEAD_DIM)[None, :]
        state = (peak, total, out)
        if WINDOW > 0:
            depths = tl.load(mask.depths + first_row + local, is_row, 0)
            seen_by_all = context + tl.max(depths, 0) - WINDOW + 1
            middle = tl.cdiv(tl.maximum(seen_by_all, begin), TILE_KEYS) * TILE_KEYS
            middle = tl.minimum(middle, middle_end)
            for start in tl.range(begin, middle, TILE_KEYS, num_stages=1):
                place = _place(table_ptr, start, stride, PAGE)
                keys = _load_tile(tensors.key + place + spots, is_dim, HEAD_DIM, BLOCK_DIM)
                values = _load_tile(tensors.value + place + spots, is_dim, HEAD_DIM, BLOCK_DIM)
                scores = _scores(query, keys, scale, SOFT_CAP)
                visible = _visible(mask, rows, entries, start, TILE_KEYS, WINDOW)
                state = _accumulate(tl.where(visible, scores, float("-inf")), values, state)

        block = tl.load(table_ptr + middle // PAGE, middle < middle_end, 0)
        for start in range(middle, middle_end, TILE_KEYS):
            place = (block.to(tl.int64) * PAGE + start % PAGE) * stride
            following = start + TILE_KEYS
            block = tl.load(table_ptr + following // PAGE, following < middle_end, 0)
            keys = _load_tile(tensors.key + place + spots, is_dim, HEAD_DIM, BLOCK_DIM)
            values = _load_tile(tensors.value + place + spots, is_dim, HEAD_DIM, BLOCK_DIM)
            state = _accumulate(_scores(query, keys, scale, SOFT_CAP), values, state)

        for start in tl.range(middle_end, end, TILE_KEYS, num_stages=1):
            place = _place(table_ptr, start, stride, PAGE)
            # Slots behind the last row may hold anything, NaN too, and 0 * NaN is not 0.
            is_key = (start + tl.arange(0, TILE_KEYS) < end)[:, None] & is_dim
            keys = tl.load(tensors.key + place + spots, is_key, 0.0)
            values = tl.load(tensors.value + place + spots, is_key, 0.0)
            scores = _scores(query, keys, scale, SOFT_CAP)
            visible = _visible(mask, rows, entries, start, TILE_KEYS, WINDOW)
            state = _accumulate(tl.where(visible, scores, float("-inf")), values, state)

        peak, total, out = state
        out = out / tl.where(total > 0.0, total, 1.0)[:, None]
        if num_parts == 1:
            kind: tl.constexpr = tensors.out.dtype.element_ty
            tl.store(tensors.out + first_place + places, out.to(kind), is_query)
        else:
            part_rows = index * TILE_ROWS + tl.arange(0, TILE_ROWS)
            part_places = part_rows[:, None] * HEAD_DIM + dims[None, :]
            tl.store(parts.out + part_places, out, is_query)
            tl.store(parts.lse + part_rows, peak + tl.log2(total), is_row)


@triton.jit
def _place(table_ptr, start, stride, PAGE: tl.constexpr):
    """int64: where the tile of keys that begins at `start` lies in the cache."""
    return (tl.load(table_ptr + start // PAGE).to(tl.int64) * PAGE + start % PAGE) * stride


@triton.jit
def _load_tile(pointers, is_dim, HEAD_DIM: tl.constexpr, BLOCK_DIM: tl.constexpr):
    if HEAD_DIM == BLOCK_DIM:
        return tl.load(pointers)
    return tl.load(pointers, is_dim, 0.0)


@triton.jit
def _scores(query, keys, scale, SOFT_CAP: tl.constexpr):
    """float32 [TILE_ROWS, TILE_KEYS] base-2 scores, under the soft cap."""
    scores = tl.dot(query, keys.T, input_precision="ieee") * scale
    if SOFT_CAP > 0.0:
        scores = SOFT_CAP * (1.0 - 2.0 / (tl.exp2(scores * (_TWO_LOG2_E / SOFT_CAP)) + 1.0))
    return scores


@triton.jit
def _accumulate(scores, values, state):
    """The running softmax after one more tile of keys."""
    peak, total, out = state
    new_peak = tl.maximum(peak, tl.max(scores, 1))
    base = tl.where(new_peak == float("-inf"), 0.0, new_peak)  # nothing seen yet
    weights = tl.exp2(scores - base[:, None])
    shrink = tl.exp2(peak - base)
    total = total * shrink + tl.sum(weights, 1)
    out = tl.dot(weights.to(values.dtype), values, out * shrink[:, None], input_precision="ieee")
    return new_peak, total, out


@triton.jit
def _visible(mask, rows, entries, start, TILE_KEYS: tl.constexpr, WINDOW: tl.constexpr):
    """bool [TILE_ROWS, TILE_KEYS]: is the key on the row's path, and in its window?"""
    first_row, local, is_row, context, chain, end = rows
    own = start - context + tl.arange(0, TILE_KEYS)  # negative: a token of the context
    visible = own[None, :] <= entries[:, None]
    bits_ptrs = mask.bits + (first_row + local) * _WORDS
    visible |= _has_bit(bits_ptrs, is_row, start - context - chain, TILE_KEYS)
    visible &= (own + context < end)[None, :]
    if WINDOW > 0:
        is_own = (own >= 0) & (own + context < end)
        depths = tl.load(mask.depths + first_row + local, is_row, 0)
        own_depths = tl.load(mask.depths + first_row + own, is_own, 0)
        positions = tl.where(own >= 0, own_depths, own)
        visible &= positions[None, :] > (depths - WINDOW)[:, None]
    return visible


@triton.jit
def _has_bit(bits_ptrs, is_row, first, TILE_KEYS: tl.constexpr):
    """bool [TILE_ROWS, TILE_KEYS]: is the tree's row `first + column` an ancestor, or the row?

    A tile is no longer than a word, so its bits lie in two words that stand side by side.
    """
    word = (first + _MANY_WORDS * _WORD) // _WORD - _MANY_WORDS  # rounds down below 0 too
    shift = (first - word * _WORD).to(tl.uint64)
    words = tl.where(is_row, word, -2)
    low = tl.load(bits_ptrs + words, (words >= 0) & (words < _WORDS), 0).to(tl.uint64)
    high = tl.load(bits_ptrs + words + 1, (words >= -1) & (words < _WORDS - 1), 0).to(tl.uint64)
    bits = (low >> shift) | ((high << (_WORD - 1 - shift)) << 1)
    return ((bits[:, None] >> tl.arange(0, TILE_KEYS).to(tl.uint64)[None, :]) & 1) != 0
