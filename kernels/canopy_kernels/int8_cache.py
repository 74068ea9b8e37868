"""Keys and values of a paged cache as int8, with a scale per slot and KV head.

    key[d]   ~ keys[slot div 16, head, d div 4, slot mod 16, d mod 4]
               * key_scales[slot div 16, head, slot mod 16]
    value[d] ~ values[slot div 16, head, d div 16, slot mod 16 div 4, d mod 16, slot mod 4]
               * value_scales[slot div 16, head, slot mod 16]

Sixteen slots form a group. Its keys lie like a block of canopy_kernels.int8_layout, with slots for
outputs, so that one exact product with a query gives the scores of sixteen slots. Its values lie
like pieces of blocks, with slots for inputs, that a product with their weights adds up.
"""

from typing import NamedTuple

import numpy as np
from numba import njit

from canopy_kernels import aligned
from canopy_kernels.int8_gemm import WEIGHT_LEVELS
from canopy_kernels.int8_layout import BLOCK, QUAD, padded_inputs
from canopy_kernels.int8_rows import quantise

GROUP = BLOCK  # slots


class Int8KeyValues(NamedTuple):
    """G groups, K KV heads, D head_dim, D' = D rounded up to 16; of L layers, or of one."""

    keys: np.ndarray  # int8 [L, G, K, D* / 4, 16, 4], D* = D rounded up to 4, zero beyond D
    key_scales: np.ndarray  # float32 [L, G, K, 16]
    values: np.ndarray  # int8 [L, G, K, D' / 16, 4, 16, 4], zero beyond D
    value_scales: np.ndarray  # float32 [L, G, K, 16]


def new_key_values(
    num_layers: int, num_groups: int, num_kv_heads: int, head_dim: int
) -> Int8KeyValues:
    """Of all layers, zero."""
    places = num_layers, num_groups, num_kv_heads
    return Int8KeyValues(
        aligned.zeros((*places, padded_inputs(head_dim) // QUAD, GROUP, QUAD), np.int8),
        aligned.zeros((*places, GROUP), np.float32),
        aligned.zeros((*places, -(-head_dim // BLOCK), GROUP // QUAD, BLOCK, QUAD), np.int8),
        aligned.zeros((*places, GROUP), np.float32),
    )


def move(cache: Int8KeyValues, sources: np.ndarray, destinations: np.ndarray) -> None:
    """Copy slots to other slots in all layers. int64 [n] each, destinations distinct.

    Sources are read before any destination is written, so the two sets may overlap.
    """
    source, destination = np.divmod(sources, GROUP), np.divmod(destinations, GROUP)
    for array, lane_axis in ((cache.keys, 4), (cache.key_scales, 3), (cache.value_scales, 3)):
        by_lane = np.moveaxis(array, lane_axis, 2)  # [L, G, 16, ...]
        by_lane[:, *destination] = by_lane[:, *source]
    values = cache.values.transpose(0, 1, 4, 6, 2, 3, 5)  # [L, G, 4, 4, ...]
    values[:, *_quads(destination)] = values[:, *_quads(source)]


def _quads(places: tuple[np.ndarray, np.ndarray]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Group, and lane as two numbers."""
    return places[0], *np.divmod(places[1], QUAD)


@njit(cache=True, nogil=True, error_model="numpy")
def put_key(head, cache, slot, kv_head):  # type: ignore[no-untyped-def]
    """Store a rotated key. head: float32 [D]; cache: of one layer."""
    levels = np.empty(len(head), np.int16)
    group, lane = slot // GROUP, slot % GROUP
    cache.key_scales[group, kv_head, lane] = quantise(head, WEIGHT_LEVELS, levels)
    for i in range(len(head)):
        cache.keys[group, kv_head, i // QUAD, lane, i % QUAD] = levels[i]


@njit(cache=True, nogil=True, error_model="numpy")
def put_value(head, cache, slot, kv_head):  # type: ignore[no-untyped-def]
    """Store a value. head: float32 [D]; cache: of one layer."""
    levels = np.empty(len(head), np.int16)
    group, lane = slot // GROUP, slot % GROUP
    cache.value_scales[group, kv_head, lane] = quantise(head, WEIGHT_LEVELS, levels)
    for i in range(len(head)):
        cache.values[group, kv_head, i // BLOCK, lane // QUAD, i % BLOCK, lane % QUAD] = levels[i]


@njit(inline="always")
def layer_of(cache, layer):  # type: ignore[no-untyped-def]
    """One layer of the cache."""
    return Int8KeyValues(
        cache.keys[layer],
        cache.key_scales[layer],
        cache.values[layer],
        cache.value_scales[layer],
    )
