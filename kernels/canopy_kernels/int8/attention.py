"""Attention of a step's rows over a paged int8 cache, each row along its own path in the tree.

    score[j]  = softmax scale * query[r, h] . keys[slot of path(r)[j]]
    out[r, h] = sum over j of softmax(score)[j] * values[slot of path(r)[j]]

Paths are those of attention.tree_attention, the cache is that of int8.kv_cache.
Both products are exact sums of integers: a group's keys are a block with slots for outputs, and a
group's values are pieces of blocks with slots for inputs, which the weights of the softmax, rounded
to integers by int8.attention_softmax, multiply. A slot off a row's path has weight zero, so a
row's result is bit-equal wherever it stands.

The cache seldom lies in the CPU's own, so each group is asked for when one some way before it is
scored, be it of the worker's unit before (canopy_kernels.int8.work_items).
Shapes: T rows, H query heads, K KV heads, D head_dim, D* and D' = D rounded up to 4 and to 16.
"""

from typing import NamedTuple

import numpy as np
from numba import njit

from canopy_kernels.cpu import aligned
from canopy_kernels.cpu.exp2 import LOG2_E
from canopy_kernels.int8 import gemm_dispatch as tiles
from canopy_kernels.int8.attention_scores import (
    GROUPS_AHEAD,
    num_members,
    prefetch_items,
    score_groups,
)
from canopy_kernels.int8.attention_softmax import path_of, scales_along, softmax_weights
from canopy_kernels.int8.gemm import activation_levels
from canopy_kernels.int8.kv_cache import GROUP
from canopy_kernels.int8.layout import BLOCK, padded_inputs, padded_outputs
from canopy_kernels.int8.rows import quantize
from canopy_kernels.int8.work_items import find_groups, partition_of_items, unit_at

# Query heads of all rows that are computed at a time: they fill two matrix tiles.
_MEMBERS = 32


class Queries(NamedTuple):
    """Rotated queries, quantized."""

    levels: int  # largest magnitude in q
    factor: np.float32  # in `scales`: softmax scale, and powers of two for those of e
    q: np.ndarray  # int16 [T, H, D*], zero beyond D
    scales: np.ndarray  # float32 [T, H]


class Scratch(NamedTuple):
    """Of each of W workers, for G groups of 16 slots and up to M query heads of a unit."""

    groups: np.ndarray  # int64 [W, 2, G] of a unit and of the next one
    lanes: np.ndarray  # int64 [W, 2, 16 G] of their rows, among those of all groups
    scores: np.ndarray  # float32 [W, M, 16 G]
    path: np.ndarray  # int64 [W, 16 G]
    softmax: np.ndarray  # float32 [W, 2, 16 G]
    path_scales: np.ndarray  # float32 [W, 16 G]
    value_scales: np.ndarray  # float32 [W, 16 G]
    levels: np.ndarray  # int16 [W, 16 G]
    packed_queries: np.ndarray  # uint8 [W, n]
    packed_weights: np.ndarray  # uint8 [W, n]
    scales: np.ndarray  # float32 [W, M]
    sums: np.ndarray  # float32 [W, M, D']
    zeros: np.ndarray  # float32 [W, 16]
    ones: np.ndarray  # float32 [W, 16]


def new_queries(num_rows: int, num_heads: int, head_dim: int) -> Queries:
    """Room for the queries of a step."""
    q = aligned.zeros((num_rows, num_heads, padded_inputs(head_dim)), np.int16)
    scales = aligned.empty((num_rows, num_heads), np.float32)
    return Queries(activation_levels(head_dim), np.float32(LOG2_E / np.sqrt(head_dim)), q, scales)


def new_scratch(num_workers: int, members: int, num_groups: int, head_dim: int) -> Scratch:
    """members: query heads that share a KV head."""
    num_heads = max(_MEMBERS, members)
    length, depth = GROUP * num_groups, padded_inputs(head_dim)

    def of_each(dtype: type, *shape: int) -> np.ndarray:
        return aligned.empty((num_workers, *shape), dtype)

    scratch = Scratch(
        of_each(np.int64, 2, num_groups),
        of_each(np.int64, 2, length),
        of_each(np.float32, num_heads, length),
        of_each(np.int64, length),
        of_each(np.float32, 2, length),
        of_each(np.float32, length),
        of_each(np.float32, length),
        of_each(np.int16, length),
        of_each(np.uint8, aligned.whole_lines(tiles.packed_size(num_heads, depth))),
        of_each(np.uint8, aligned.whole_lines(tiles.packed_size(num_heads, length))),
        of_each(np.float32, num_heads),
        of_each(np.float32, num_heads, padded_outputs(head_dim)),
        of_each(np.float32, BLOCK),
        of_each(np.float32, BLOCK),
    )
    scratch.zeros[...], scratch.ones[...] = 0.0, 1.0
    return scratch


@njit(inline="always")
def _of_worker(scratch, worker):
    return Scratch(
        scratch.groups[worker],
        scratch.lanes[worker],
        scratch.scores[worker],
        scratch.path[worker],
        scratch.softmax[worker],
        scratch.path_scales[worker],
        scratch.value_scales[worker],
        scratch.levels[worker],
        scratch.packed_queries[worker],
        scratch.packed_weights[worker],
        scratch.scales[worker],
        scratch.sums[worker],
        scratch.zeros[worker],
        scratch.ones[worker],
    )


@njit(cache=True, nogil=True, error_model="numpy")
def put_query(head, queries, row, index):
    """Store a rotated query head: float32 [D]."""
    scale = quantize(head, queries.levels, queries.q[row, index])
    queries.scales[row, index] = scale * queries.factor


@njit(inline="always")
def _units(queries, cache, layout, worker, num_workers):
    most_rows = max(_MEMBERS // num_members(queries, cache), 1)
    return partition_of_items(layout, most_rows, len(cache.keys), worker, num_workers)


@njit(cache=True, nogil=True, error_model="numpy")
def prefetch_partition(queries, cache, layout, scratch, worker, num_workers):
    """Ask for what `attend_partition` will read first of the cache."""
    units = _units(queries, cache, layout, worker, num_workers)
    if len(units) > 0:
        unit, mine = unit_at(units, 0), _of_worker(scratch, worker)
        num_groups = find_groups(layout, unit, mine.groups[0], mine.lanes[0])
        for index in range(min(num_groups, GROUPS_AHEAD)):
            prefetch_items(cache, mine.groups[0, index], unit.kv_head)


@njit(cache=True, nogil=True, error_model="numpy")
def attend_partition(queries, cache, layout, scratch, out, worker, num_workers):
    """Worker's share of the units of a step.

    layout: `PagedRows.arrays`, its block size a multiple of GROUP. scratch: for at least as many
    groups as `int8_units.most_groups` says. out: float32 [T, H, D'].
    """
    units = _units(queries, cache, layout, worker, num_workers)
    mine = _of_worker(scratch, worker)
    if len(units) > 0:
        num_groups = find_groups(layout, unit_at(units, 0), mine.groups[0], mine.lanes[0])
    for index in range(len(units)):
        unit, following = unit_at(units, index), unit_at(units, min(index + 1, len(units) - 1))
        here, there = index % 2, (index + 1) % 2
        num_following = find_groups(layout, following, mine.groups[there], mine.lanes[there])
        groups = mine.groups[here, :num_groups]
        after = mine.groups[there, :num_following], following.kv_head
        score_groups(queries, cache, unit, groups, after, mine)
        _weigh(queries, cache, layout, unit, groups, mine.lanes[here], mine)
        _sum_values(cache, unit.kv_head, groups, _num_rows(queries, cache, unit), mine)
        _put(unit, num_members(queries, cache), mine.sums, out)
        num_groups = num_following


@njit(inline="always")
def _num_rows(queries, cache, unit):
    """Query heads of a unit, which its products take for rows."""
    return num_members(queries, cache) * (unit.end - unit.first)


@njit(cache=True, nogil=True, error_model="numpy")
def _weigh(queries, cache, layout, unit, groups, lanes, scratch):
    """Turn scores into weights, packed as rows over the slots of all groups."""
    members, num_rows = num_members(queries, cache), _num_rows(queries, cache, unit)
    context_length, parents = layout[3][unit.sequence], layout[1]
    for index in range(len(groups)):
        for lane in range(GROUP):
            scratch.value_scales[GROUP * index + lane] = cache.value_scales[
                unit.kv_head, groups[index], lane
            ]
    levels = scratch.levels[: GROUP * len(groups)]
    for row in range(unit.first, unit.end):
        path = path_of(context_length, row, unit.start, parents, lanes, scratch.path)
        scales = scales_along(scratch.value_scales, path, scratch.path_scales)
        for index in range(members * (row - unit.first), members * (row + 1 - unit.first)):
            scores = scratch.scores[index]
            scratch.scales[index] = softmax_weights(scores, scales, path, scratch.softmax, levels)
            tiles.pack_row(levels, GROUP, scratch.packed_weights, index, num_rows)


@njit(cache=True, nogil=True, error_model="numpy")
def _sum_values(cache, kv_head, groups, num_rows, scratch):
    """Multiply the weights of all query heads with the values of all groups."""
    values = cache.values[kv_head]
    for index in range(len(groups)):
        groups[index] *= values[0].size  # now the distance of its values from those of the first
    first, size = values.ctypes.data, scratch.sums.shape[1]
    a_operand = scratch.packed_weights.ctypes.data, num_rows, scratch.scales.ctypes.data
    tiles.begin(num_rows, GROUP)
    for column in range(0, size, BLOCK):
        b_operand = (
            first + column * GROUP,
            groups.ctypes.data,
            len(groups),
            GROUP,
            scratch.ones.ctypes.data,
            scratch.zeros.ctypes.data,
            0,
        )
        out = scratch.sums.ctypes.data + 4 * column, size
        tiles.block_of_outputs(a_operand, b_operand, out)
    tiles.end(num_rows)


@njit(inline="always")
def _put(unit, members, sums, out):
    """Bring what a unit's query heads gathered to its place in out."""
    head = unit.kv_head * members
    for row in range(unit.first, unit.end):
        for member in range(members):
            index = members * (row - unit.first) + member
            for i in range(sums.shape[1]):
                out[row, head + member, i] = sums[index, i]
