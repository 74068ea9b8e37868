"""Keys and values of a paged cache as int8, with a scale per slot and KV head.

    key[d]   ~ keys[head, slot div 16, d div 4, slot mod 16, d mod 4]
               * key_scales[head, slot div 16, slot mod 16]
    value[d] ~ values[head, slot div 16, d div 16, slot mod 16 div 4, d mod 16, slot mod 4]
               * value_scales[head, slot div 16, slot mod 16]

Sixteen slots form a group; a head's groups follow each other, as they are read. A group's keys lie
like a block of canopy_kernels.int8.layout, with slots for outputs, so that one exact product with a
query gives the scores of sixteen slots. Its values lie like pieces of blocks, with slots for
inputs, that a product with their weights adds up.
"""

import math
from typing import NamedTuple

import numpy as np
from numba import njit

from canopy_kernels.cpu import aligned
from canopy_kernels.int8.gemm import WEIGHT_LEVELS
from canopy_kernels.int8.layout import BLOCK, QUAD, padded_inputs, padded_outputs
from canopy_kernels.int8.rows import quantize

GROUP = BLOCK  # slots


class Int8KeyValues(NamedTuple):
    """G groups, K KV heads, D head_dim, D' = D rounded up to 16; of L layers, or of one."""

    keys: np.ndarray  # int8 [L, K, G, D* / 4, 16, 4], D* = D rounded up to 4, zero beyond D
    key_scales: np.ndarray  # float32 [L, K, G, 16]
    values: np.ndarray  # int8 [L, K, G, D' / 16, 4, 16, 4], zero beyond D
    value_scales: np.ndarray  # float32 [L, K, G, 16]


def new_key_values(
    num_layers: int, num_groups: int, num_kv_heads: int, head_dim: int
) -> Int8KeyValues:
    """Of all layers, zero, side by side in memory: so scales share the huge pages of the rest."""
    places = num_layers, num_kv_heads, num_groups
    shapes = (
        (*places, padded_inputs(head_dim) // QUAD, GROUP, QUAD),
        (*places, GROUP * np.dtype(np.float32).itemsize),
        (*places, padded_outputs(head_dim) // BLOCK, GROUP // QUAD, BLOCK, QUAD),
        (*places, GROUP * np.dtype(np.float32).itemsize),
    )
    ends = np.cumsum([math.prod(shape) for shape in shapes])
    parts = np.split(aligned.zeros(int(ends[-1]), np.int8), ends[:-1])
    keys, key_scales, values, value_scales = (
        part.reshape(shape) for part, shape in zip(parts, shapes, strict=True)
    )
    return Int8KeyValues(keys, key_scales.view(np.float32), values, value_scales.view(np.float32))


def move(cache: Int8KeyValues, sources: np.ndarray, destinations: np.ndarray) -> None:
    """Copy slots to other slots in all layers. int64 [n] each, destinations distinct.

    Sources are read before any destination is written, so the two sets may overlap.
    """
    source, destination = np.divmod(sources, GROUP), np.divmod(destinations, GROUP)
    for array, lane_axis in ((cache.keys, 4), (cache.key_scales, 3), (cache.value_scales, 3)):
        by_lane = np.moveaxis(array, lane_axis, 3)  # [L, K, G, 16, ...]
        by_lane[:, :, *destination] = by_lane[:, :, *source]
    values = cache.values.transpose(0, 1, 2, 4, 6, 3, 5)  # [L, K, G, 4, 4, ...]
    values[:, :, *_quads(destination)] = values[:, :, *_quads(source)]


def _quads(places: tuple[np.ndarray, np.ndarray]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Group, and lane as two numbers."""
    return places[0], *np.divmod(places[1], QUAD)


@njit(cache=True, nogil=True, error_model="numpy")
def put_key(head, cache, slot, kv_head, levels):
    """Store a rotated key. head: float32 [D]; cache: of one layer; levels: of `alloc_levels`."""
    group, lane = slot // GROUP, slot % GROUP
    cache.key_scales[kv_head, group, lane] = quantize(head, WEIGHT_LEVELS, levels)
    words = cache.keys[kv_head, group].view(np.int32)  # [D* / 4, 16, 1]
    for quad in range(len(words)):
        word = np.int32(0)
        for i in range(QUAD):
            word |= np.int32(np.int32(levels[QUAD * quad + i] & 0xFF) << np.int32(8 * i))
        words[quad, lane, 0] = word


@njit(cache=True, nogil=True, error_model="numpy")
def put_value(head, cache, slot, kv_head, levels):
    """Store a value, as `put_key` does."""
    group, lane = slot // GROUP, slot % GROUP
    cache.value_scales[kv_head, group, lane] = quantize(head, WEIGHT_LEVELS, levels)
    # Byte by byte: the other bytes of a word may be another worker's rows.
    for i in range(len(head)):
        cache.values[kv_head, group, i // BLOCK, lane // QUAD, i % BLOCK, lane % QUAD] = levels[i]


@njit(inline="always")
def alloc_levels(head_dim):
    """For `put_key` and `put_value` to work in: int16 [D*], zero beyond D."""
    return np.zeros(head_dim + -head_dim % QUAD, np.int16)


@njit(inline="always")
def layer_of(cache, layer):
    """One layer of the cache."""
    return Int8KeyValues(
        cache.keys[layer],
        cache.key_scales[layer],
        cache.values[layer],
        cache.value_scales[layer],
    )
