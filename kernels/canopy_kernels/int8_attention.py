"""Attention of a step's rows over a paged int8 cache, each row along its own path in the tree.

    score[j]  = softmax scale * query[r, h] . keys[slot of path(r)[j]]
    out[r, h] = sum over j of softmax(score)[j] * values[slot of path(r)[j]]

Paths are those of canopy_kernels.tree_attention, the cache is that of canopy_kernels.int8_cache.
The keys of a group of slots are a block of canopy_kernels.int8_gemm, with slots for outputs: its
exact sums are the scores. Values are added in the order of the path, so a row's result is
bit-equal wherever it stands.

Shapes: T rows, H query heads, K KV heads, D head_dim, D' = D rounded up to 16.
"""

from typing import NamedTuple

import numpy as np
from numba import njit

from canopy_kernels.exponential import exp2
from canopy_kernels.int8_cache import GROUP
from canopy_kernels.int8_gemm import block_of_outputs, pack_rows
from canopy_kernels.int8_rows import LOG2_E, quantise
from canopy_kernels.int8_weighted_sum import weighted_sums
from canopy_kernels.prefetching import prefetch

# Sums may be reordered by the compiler, once for all calls: never by what a call holds.
_FIXED_ORDER = {"reassoc", "nsz", "contract"}


class Queries(NamedTuple):
    """Rotated queries, quantised; the softmax scale is part of `scales`."""

    levels: int  # largest magnitude in q
    q: np.ndarray  # int16 [T, H, D]
    scales: np.ndarray  # float32 [T, H]


@njit(cache=True, nogil=True, error_model="numpy")
def put_query(head, queries, row, index):  # type: ignore[no-untyped-def]
    """Store a rotated query head, in powers of two: head float32 [D]."""
    scale = quantise(head, queries.levels, queries.q[row, index])
    queries.scales[row, index] = scale * np.float32(LOG2_E / np.sqrt(len(head)))


@njit(cache=True, nogil=True, error_model="numpy")
def attend_share(queries, cache, layout, out, worker, num_workers):  # type: ignore[no-untyped-def]
    """Worker's share of the (row, KV head) pairs, by the lengths of their paths.

    layout: `PagedRows.arrays`, its block size a multiple of GROUP. out: float32 [T, H, D'].
    """
    slots, parents, starts, context_lengths, block_tables, block_size = layout
    num_kv_heads = cache.keys.shape[1]
    lengths, longest, total = _path_lengths(parents, starts, context_lengths)
    scratch = _scratch(queries.q.shape[1] // num_kv_heads, longest)
    places = np.empty(longest, np.int64)
    before = 0
    for sequence in range(len(context_lengths)):
        context_length = context_lengths[sequence]
        _place_context(block_tables[sequence], block_size, places[:context_length], num_kv_heads)
        for row in range(starts[sequence], starts[sequence + 1]):
            path = places[: lengths[row]]
            _place_ancestors(row, slots, parents, path[context_length:], num_kv_heads)
            for kv_head in range(num_kv_heads):
                if before * num_workers // (num_kv_heads * total) == worker:
                    _attend(queries, cache, (path, context_length), (row, kv_head), scratch, out)
                before += lengths[row]


@njit(inline="always")
def _path_lengths(parents, starts, context_lengths):  # type: ignore[no-untyped-def]
    """Of every row, the longest, and all together."""
    lengths = np.empty(len(parents), np.int64)
    longest, total = 0, 0
    for sequence in range(len(context_lengths)):
        for row in range(starts[sequence], starts[sequence + 1]):
            parent = parents[row]
            lengths[row] = (context_lengths[sequence] if parent < 0 else lengths[parent]) + 1
            longest = max(longest, lengths[row])
            total += lengths[row]
    return lengths, longest, total


@njit(inline="always")
def _place(slot, num_kv_heads):  # type: ignore[no-untyped-def]
    """Index of a slot among all lanes of the cache, of KV head 0."""
    return slot // GROUP * (num_kv_heads * GROUP) + slot % GROUP


@njit(inline="always")
def _place_context(block_table, block_size, places, num_kv_heads):  # type: ignore[no-untyped-def]
    for start in range(0, len(places), GROUP):
        slot = np.int64(block_table[start // block_size]) * block_size + start % block_size
        first = _place(slot, num_kv_heads)
        for lane in range(min(GROUP, len(places) - start)):
            places[start + lane] = first + lane


@njit(inline="always")
def _place_ancestors(row, slots, parents, places, num_kv_heads):  # type: ignore[no-untyped-def]
    """The row's ancestors in the step and the row, by depth."""
    for index in range(len(places) - 1, -1, -1):
        places[index] = _place(slots[row], num_kv_heads)
        row = parents[row]


@njit(inline="always")
def _scratch(num_heads, longest):  # type: ignore[no-untyped-def]
    """Weights of a path and of one group, scales of a path, and no bias."""
    return (
        np.empty((num_heads, longest + GROUP), np.float32),
        np.empty((num_heads, GROUP), np.float32),
        np.empty(longest, np.float32),
        np.zeros(GROUP, np.float32),
    )


@njit(cache=True, nogil=True, error_model="numpy")
def _attend(queries, cache, path, pair, scratch, out):  # type: ignore[no-untyped-def]
    """One row and the query heads that share one KV head."""
    places, _ = path
    weights, _, scales, _ = scratch
    row, kv_head = pair
    _score(queries, cache, path, pair, scratch)
    value_scales = cache.value_scales.reshape(-1)
    for index in range(len(places)):
        scales[index] = value_scales[places[index] + GROUP * kv_head]
    for member in range(len(weights)):
        _softmax(weights[member, : len(places)], scales)
    rows = cache.values.ctypes.data + GROUP * kv_head * cache.values.shape[3]
    weighted_sums(weights, places, rows, out[row, len(weights) * kv_head :])


@njit(inline="always")
def _score(queries, cache, path, pair, scratch):  # type: ignore[no-untyped-def]
    """Scores in the order of the path; the context's last group may leave more behind it."""
    places, context_length = path
    scores, lanes, _, zeros = scratch
    row, kv_head = pair
    heads = slice(kv_head * len(scores), (kv_head + 1) * len(scores))
    members = pack_rows(queries.q[row, heads]), queries.scales[row, heads]
    places_of_group = cache.keys.shape[1] * GROUP
    for start in range(0, context_length, GROUP):
        following = places[min(start + GROUP, len(places) - 1)] // places_of_group
        prefetch(cache.keys[following, kv_head])
        prefetch(cache.values[places[start] // places_of_group, kv_head])
        out = scores.ctypes.data + 4 * start, scores.shape[1]
        _score_group(members, cache, (places[start] // places_of_group, kv_head), zeros, out)
    scored = np.int64(-1)
    for index in range(context_length, len(places)):
        group, lane = places[index] // places_of_group, places[index] % GROUP
        if group != scored:
            out = lanes.ctypes.data, lanes.shape[1]
            _score_group(members, cache, (group, kv_head), zeros, out)
            scored = group
        for member in range(len(scores)):
            scores[member, index] = lanes[member, lane]


@njit(cache=True, nogil=True, error_model="numpy")
def _score_group(members, cache, group, zeros, out):  # type: ignore[no-untyped-def]
    """Scores of all slots of a group, for packed query heads and their scales.

    group: index and KV head. out: address, distance of query heads.
    """
    tiles, scales = members
    keys = cache.keys[group]
    row_side = tiles.ctypes.data, scales.ctypes.data, out[1]
    key_side = keys.ctypes.data, cache.key_scales[group].ctypes.data, zeros.ctypes.data
    block_of_outputs(len(scales), row_side, (*key_side, len(keys), 0), out[0])


@njit(cache=True, nogil=True, error_model="numpy", fastmath=_FIXED_ORDER)
def _softmax(row, scales):  # type: ignore[no-untyped-def]
    """In place, of powers of two; every weight then carries the scale of its value."""
    highest = row[0]
    for index in range(len(row)):
        highest = max(highest, row[index])
    total = np.float32(0.0)
    for index in range(len(row)):
        row[index] = exp2(row[index] - highest)
        total += row[index]
    factor = np.float32(1.0) / total
    for index in range(len(row)):
        row[index] *= factor * scales[index]
