"""Attention of a step's rows over a paged int8 cache, each row along its own path in the tree.

    score[j]  = softmax scale * query[r, h] . keys[slot of path(r)[j]]
    out[r, h] = sum over j of softmax(score)[j] * values[slot of path(r)[j]]

Paths are those of canopy_kernels.tree_attention, the cache is that of canopy_kernels.int8_cache.
Both products are exact sums of integers: a group's keys are a block with slots for outputs, and a
group's values are pieces of blocks with slots for inputs, which the weights of the softmax, rounded
to integers by canopy_kernels.int8_softmax, multiply. A slot off a row's path has weight zero, so a
row's result is bit-equal wherever it stands.

Rows of a sequence are computed some at a time, to share what is read of the cache.
Shapes: T rows, H query heads, K KV heads, D head_dim, D* and D' = D rounded up to 4 and to 16.
"""

from typing import NamedTuple

import numpy as np
from numba import njit

from canopy_kernels import int8_tiles as tiles
from canopy_kernels.int8_cache import GROUP
from canopy_kernels.int8_gemm import piece_distances
from canopy_kernels.int8_layout import BLOCK, tile_height
from canopy_kernels.int8_rows import LOG2_E, quantise
from canopy_kernels.int8_softmax import weigh
from canopy_kernels.prefetching import prefetch

# Query heads of all rows that are computed at a time: they fill two matrix tiles.
_MEMBERS = 32
_GROUPS_AHEAD = 4  # of the one that is scored, whose keys are asked for


class Queries(NamedTuple):
    """Rotated queries, quantised; the softmax scale is part of `scales`."""

    levels: int  # largest magnitude in q
    q: np.ndarray  # int16 [T, H, D*], zero beyond D
    scales: np.ndarray  # float32 [T, H]


@njit(cache=True, nogil=True, error_model="numpy")
def put_query(head, queries, row, index):  # type: ignore[no-untyped-def]
    """Store a rotated query head, in powers of two: head float32 [D]."""
    scale = quantise(head, queries.levels, queries.q[row, index])
    queries.scales[row, index] = scale * np.float32(LOG2_E / np.sqrt(len(head)))


@njit(cache=True, nogil=True, error_model="numpy")
def attend_share(queries, cache, layout, out, worker, num_workers):  # type: ignore[no-untyped-def]
    """Worker's share of the pairs of some rows and a KV head, by the lengths of their paths.

    layout: `PagedRows.arrays`, its block size a multiple of GROUP. out: float32 [T, H, D'].
    """
    starts, context_lengths = layout[2:4]
    num_kv_heads = cache.keys.shape[1]
    num_members = queries.q.shape[1] // num_kv_heads
    most_rows = max(_MEMBERS // num_members, 1)
    total, most_groups = _extent(layout, most_rows, num_kv_heads)
    scratch = _scratch(most_rows * num_members, most_groups, queries.q.shape[2], out.shape[2])
    before = 0
    for sequence in range(len(context_lengths)):
        start, last = starts[sequence], starts[sequence + 1]
        height = _rows_at_once(last - start, most_rows)
        for first in range(start, last, height):
            end = min(first + height, last)
            for kv_head in range(num_kv_heads):
                if before * num_workers // total == worker:
                    rows = sequence, start, first, end
                    _attend(queries, cache, layout, rows, kv_head, scratch, out)
                before += _cost(context_lengths[sequence], start, first, end)


@njit(inline="always")
def _rows_at_once(num_rows, most_rows):  # type: ignore[no-untyped-def]
    """Parts of a sequence are as even as can be, so that workers have shares as even as can be."""
    return tile_height(max(num_rows, 1), most_rows)


@njit(inline="always")
def _cost(context_length, start, first, end):  # type: ignore[no-untyped-def]
    return (end - first) * (context_length + end - start)


@njit(inline="always")
def _extent(layout, most_rows, num_kv_heads):  # type: ignore[no-untyped-def]
    """The cost of everything, and the groups of the sequence that has most."""
    slots, _, starts, context_lengths = layout[:4]
    total, most_groups = 0, 0
    for sequence in range(len(context_lengths)):
        start, last = starts[sequence], starts[sequence + 1]
        height = _rows_at_once(last - start, most_rows)
        for first in range(start, last, height):
            end = min(first + height, last)
            total += num_kv_heads * _cost(context_lengths[sequence], start, first, end)
        num_groups = -(-context_lengths[sequence] // GROUP)
        for row in range(start, last):
            num_groups += _begins_group(slots, row, start)
        most_groups = max(most_groups, num_groups)
    return total, most_groups


@njit(inline="always")
def _begins_group(slots, row, start):  # type: ignore[no-untyped-def]
    """Whether a row of a sequence lies in another group than the row before."""
    return row == start or slots[row] // GROUP != slots[row - 1] // GROUP


class _Scratch(NamedTuple):
    """For M query heads, and G groups of 16 slots."""

    groups: np.ndarray  # int64 [G]
    lanes: np.ndarray  # int64 [16 G] of the step's rows, among those of all groups
    scores: np.ndarray  # float32 [M, 16 G]
    path: np.ndarray  # float32 [16 G]
    value_scales: np.ndarray  # float32 [16 G]
    levels: np.ndarray  # int16 [16 G]
    packed_queries: np.ndarray  # uint8
    packed_weights: np.ndarray  # uint8
    scales: np.ndarray  # float32 [M]
    sums: np.ndarray  # float32 [M, D']
    zeros: np.ndarray  # float32 [16]
    ones: np.ndarray  # float32 [16]


@njit(inline="always")
def _scratch(num_members, num_groups, depth, size):  # type: ignore[no-untyped-def]
    length = GROUP * num_groups
    return _Scratch(
        np.empty(num_groups, np.int64),
        np.empty(length, np.int64),
        np.empty((num_members, length), np.float32),
        np.empty(length, np.float32),
        np.empty(length, np.float32),
        np.empty(length, np.int16),
        np.empty(tiles.packed_size(num_members, depth), np.uint8),
        np.empty(tiles.packed_size(num_members, length), np.uint8),
        np.empty(num_members, np.float32),
        np.empty((num_members, size), np.float32),
        np.zeros(BLOCK, np.float32),
        np.ones(BLOCK, np.float32),
    )


@njit(cache=True, nogil=True, error_model="numpy")
def _attend(queries, cache, layout, rows, kv_head, scratch, out):  # type: ignore[no-untyped-def]
    """Some rows of a sequence, and the query heads that share one KV head."""
    sequence, start, first, end = rows
    context_length = layout[3][sequence]
    num_members = queries.q.shape[1] // cache.keys.shape[1]
    head = kv_head * num_members
    num_groups = _find_groups(layout, rows, scratch)
    _score(queries, cache, (first, end, head, num_members), kv_head, num_groups, scratch)
    for lane in range(GROUP * num_groups):
        group = scratch.groups[lane // GROUP]
        scratch.value_scales[lane] = cache.value_scales[group, kv_head, lane % GROUP]
    num_rows = num_members * (end - first)
    levels = scratch.levels[: GROUP * num_groups]
    for index in range(num_rows):
        path = context_length, first + index // num_members, start
        scratch.scales[index] = weigh(scratch, index, path, layout[1], levels)
        tiles.pack_row(levels, GROUP, scratch.packed_weights, index, num_rows)
    _sum_values(cache, kv_head, num_groups, num_rows, scratch)
    for row in range(first, end):
        for member in range(num_members):
            for i in range(scratch.sums.shape[1]):
                out[row, head + member, i] = scratch.sums[num_members * (row - first) + member, i]


@njit(inline="always")
def _find_groups(layout, rows, scratch):  # type: ignore[no-untyped-def]
    """List the groups of the context and of the step's rows up to the last one; their number."""
    slots, _, _, context_lengths, block_tables, block_size = layout
    sequence, start, _, end = rows
    num_groups = 0
    for position in range(0, context_lengths[sequence], GROUP):
        block = np.int64(block_tables[sequence, position // block_size])
        scratch.groups[num_groups] = (block * block_size + position % block_size) // GROUP
        num_groups += 1
    for row in range(start, end):
        if _begins_group(slots, row, start):
            scratch.groups[num_groups] = slots[row] // GROUP
            num_groups += 1
        scratch.lanes[row - start] = GROUP * (num_groups - 1) + slots[row] % GROUP
    return num_groups


@njit(cache=True, nogil=True, error_model="numpy")
def _score(queries, cache, members, kv_head, num_groups, scratch):  # type: ignore[no-untyped-def]
    """Scores of every slot of all groups."""
    first, end, head, num_members = members
    num_rows, size = num_members * (end - first), queries.q.shape[2]
    depth = tiles.piece_depth(size, num_rows)
    distances = piece_distances(size, depth)
    for row in range(first, end):
        for member in range(num_members):
            index = num_members * (row - first) + member
            scratch.scales[index] = queries.scales[row, head + member]
            query = queries.q[row, head + member]
            tiles.pack_row(query, depth, scratch.packed_queries, index, num_rows)
    row_side = scratch.packed_queries.ctypes.data, num_rows, scratch.scales.ctypes.data
    out, stride = scratch.scores.ctypes.data, scratch.scores.shape[1]
    tiles.begin(num_rows, depth)
    for index in range(num_groups):
        following = scratch.groups[min(index + _GROUPS_AHEAD, num_groups - 1)]
        prefetch(cache.keys[following, kv_head])
        group = scratch.groups[index]
        prefetch(cache.values[group, kv_head])
        keys = cache.keys[group, kv_head].ctypes.data, distances.ctypes.data, len(distances), depth
        scales = cache.key_scales[group, kv_head].ctypes.data, scratch.zeros.ctypes.data, 0
        tiles.block_of_outputs(row_side, keys + scales, (out + 4 * GROUP * index, stride))
    tiles.end(num_rows)


@njit(cache=True, nogil=True, error_model="numpy")
def _sum_values(cache, kv_head, num_groups, num_rows, scratch):  # type: ignore[no-untyped-def]
    """Multiply the weights of all query heads with the values of all groups."""
    values, distances = cache.values, scratch.groups
    for index in range(num_groups):
        distances[index] *= values[0].size
    first = values[0, kv_head].ctypes.data
    row_side = scratch.packed_weights.ctypes.data, num_rows, scratch.scales.ctypes.data
    size = scratch.sums.shape[1]
    tiles.begin(num_rows, GROUP)
    for column in range(0, size, BLOCK):
        block_side = (
            first + column * GROUP,
            distances.ctypes.data,
            num_groups,
            GROUP,
            scratch.ones.ctypes.data,
            scratch.zeros.ctypes.data,
            0,
        )
        out = scratch.sums.ctypes.data + 4 * column, size
        tiles.block_of_outputs(row_side, block_side, out)
    tiles.end(num_rows)
