"""Scores of a unit's query heads against all keys of its groups, by the kernel that suits the CPU.

    scores[m, 16 g + n] = sum over k of query[m, k] key[16 g + n, k], scaled

Up to 16 query heads fit into matrix tiles, in which they stay while the groups pass by.
"""

from numba import njit

from canopy_kernels.cpu.amx_ir import has_matrix_tiles
from canopy_kernels.cpu.prefetch import prefetch
from canopy_kernels.int8 import gemm_dispatch as tiles
from canopy_kernels.int8.gemm import piece_distances
from canopy_kernels.int8.kv_cache import GROUP
from canopy_kernels.int8.layout import BLOCK, tile_height

GROUPS_AHEAD = 8  # from the one that is scored to the one that is asked for


@njit(inline="always")
def prefetch_items(cache, group, kv_head):
    """Ask for a group's keys and values."""
    prefetch(cache.keys[kv_head, group])
    prefetch(cache.values[kv_head, group])
    prefetch(cache.key_scales[kv_head, group])
    prefetch(cache.value_scales[kv_head, group])


@njit(inline="always")
def _ask_ahead(cache, groups, kv_head, after, index):
    """Ask for a group of a unit, or of the one after it when the unit has not so many."""
    if index < len(groups):
        prefetch_items(cache, groups[index], kv_head)
    elif index - len(groups) < len(after[0]):
        prefetch_items(cache, after[0][index - len(groups)], after[1])


@njit(cache=True, nogil=True, error_model="numpy")
def score_by_blocks(queries, cache, unit, groups, after, scratch):
    """See `score_groups`; for any head_dim."""
    num_rows, size = num_members(queries, cache) * (unit.end - unit.first), queries.q.shape[2]
    depth = tiles.piece_depth(size, num_rows)
    distances = piece_distances(size, depth)
    for index in range(num_rows):
        query = _query(queries, cache, unit, index, scratch)
        tiles.pack_row(query, depth, scratch.packed_queries, index, num_rows)
    a_operand = scratch.packed_queries.ctypes.data, num_rows, scratch.scales.ctypes.data
    out, stride = scratch.scores.ctypes.data, scratch.scores.shape[1]
    tiles.begin(num_rows, depth)
    for index in range(len(groups)):
        _ask_ahead(cache, groups, unit.kv_head, after, index + GROUPS_AHEAD)
        keys = (
            cache.keys[unit.kv_head, groups[index]].ctypes.data,
            distances.ctypes.data,
            len(distances),
            depth,
            cache.key_scales[unit.kv_head, groups[index]].ctypes.data,
            scratch.zeros.ctypes.data,
            0,
        )
        tiles.block_of_outputs(a_operand, keys, (out + 4 * GROUP * index, stride))
    tiles.end(num_rows)


@njit(inline="always")
def num_members(queries, cache):
    """Query heads that share a KV head."""
    return queries.q.shape[1] // len(cache.keys)


@njit(inline="always")
def _query(queries, cache, unit, index, scratch):
    """A query head of a unit by its number there; its scale is noted."""
    members = num_members(queries, cache)
    row, head = unit.first + index // members, unit.kv_head * members + index % members
    scratch.scales[index] = queries.scales[row, head]
    return queries.q[row, head]


if has_matrix_tiles():
    from canopy_kernels.int8 import gemm_amx_stationary as held

    @njit(cache=True, nogil=True, error_model="numpy")
    def score_groups(queries, cache, unit, groups, after, scratch):
        """Scores of every slot of all groups of a unit; `after` are the next unit's, and its head.

        scratch: of canopy_kernels.int8.attention; scores and the queries' scales are written.
        """
        size = queries.q.shape[2]
        depth = held.piece_depth(size)
        num_pieces = -(-size // depth)
        if num_pieces > held.MOST_PIECES:
            score_by_blocks(queries, cache, unit, groups, after, scratch)
            return
        num_rows = num_members(queries, cache) * (unit.end - unit.first)
        for index in range(num_rows):
            query = _query(queries, cache, unit, index, scratch)
            held.pack_row(query, depth, scratch.packed_queries, index, num_rows)
        height = tile_height(num_rows, held.MAX_TILE)
        held.begin(height, depth)
        for first in range(0, num_rows, height):
            tile = scratch.packed_queries.ctypes.data + 2 * num_pieces * depth * first
            held.hold(num_pieces, tile, height, depth)
            rows = min(height, num_rows - first), scratch.scales.ctypes.data + 4 * first
            _multiply_all(
                cache,
                unit.kv_head,
                groups,
                after,
                (num_pieces, size - depth),
                rows,
                scratch.scores[first:],
            )
        held.end()

    @njit(inline="always")
    def _multiply_all(cache, kv_head, groups, after, pieces, rows, scores):
        num_pieces, last = pieces
        for index in range(len(groups)):
            _ask_ahead(cache, groups, kv_head, after, index + GROUPS_AHEAD)
            group = groups[index]
            keys = (
                cache.keys[kv_head, group].ctypes.data,
                BLOCK * last,
                cache.key_scales[kv_head, group].ctypes.data,
            )
            out = scores.ctypes.data + 4 * GROUP * index, scores.shape[1]
            held.multiply(num_pieces, keys, rows, out)

else:
    score_groups = score_by_blocks
