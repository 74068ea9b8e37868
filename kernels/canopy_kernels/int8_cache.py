"""Keys and values of a paged cache as int8, with a scale per slot and KV head.

    key[d]  ~ keys[slot div 16, head, d div 2, slot mod 16, d mod 2] * key_scales[...]
    value   ~ values[slot div 16, head, slot mod 16] * value_scales[...]

Sixteen slots form a group. The keys of a group lie like a block of canopy_kernels.int8_gemm, with
slots for outputs, so that one exact product with a query gives the scores of sixteen slots.
"""

from typing import NamedTuple

import numpy as np
from numba import njit

from canopy_kernels.int8_gemm import BLOCK, WEIGHT_LEVELS
from canopy_kernels.int8_rows import quantise
from canopy_kernels.vector_ir import LANES, PAIR

GROUP = BLOCK  # slots


class Int8KeyValues(NamedTuple):
    """G groups, K KV heads, D head_dim, D' = D rounded up to 16; of L layers, or of one."""

    keys: np.ndarray  # int8 [L, G, K, D / 2, 16, 2]
    key_scales: np.ndarray  # float32 [L, G, K, 16]
    values: np.ndarray  # int8 [L, G, K, 16, D'], zero beyond D
    value_scales: np.ndarray  # float32 [L, G, K, 16]


def new_key_values(
    num_layers: int, num_groups: int, num_kv_heads: int, head_dim: int
) -> Int8KeyValues:
    """Of all layers, zero."""
    places = num_layers, num_groups, num_kv_heads
    return Int8KeyValues(
        np.zeros((*places, head_dim // PAIR, GROUP, PAIR), np.int8),
        np.zeros((*places, GROUP), np.float32),
        np.zeros((*places, GROUP, head_dim + -head_dim % LANES), np.int8),
        np.zeros((*places, GROUP), np.float32),
    )


def move(cache: Int8KeyValues, sources: np.ndarray, destinations: np.ndarray) -> None:
    """Copy slots to other slots in all layers. int64 [n] each, destinations distinct.

    Sources are read before any destination is written, so the two sets may overlap.
    """
    source, destination = np.divmod(sources, GROUP), np.divmod(destinations, GROUP)
    for array, lane_axis in zip(cache, (4, 3, 3, 3), strict=True):
        by_lane = np.moveaxis(array, lane_axis, 2)  # [L, G, 16, ...]
        by_lane[:, *destination] = by_lane[:, *source]


@njit(cache=True, nogil=True, error_model="numpy")
def put_key(head, cache, slot, kv_head):  # type: ignore[no-untyped-def]
    """Store a rotated key. head: float32 [D]; cache: of one layer."""
    levels = np.empty(len(head), np.int16)
    group, lane = slot // GROUP, slot % GROUP
    cache.key_scales[group, kv_head, lane] = quantise(head, WEIGHT_LEVELS, levels)
    for i in range(len(head)):
        cache.keys[group, kv_head, i // PAIR, lane, i % PAIR] = levels[i]


@njit(cache=True, nogil=True, error_model="numpy")
def put_value(head, cache, slot, kv_head):  # type: ignore[no-untyped-def]
    """Store a value. head: float32 [D]; cache: of one layer."""
    levels = np.empty(len(head), np.int16)
    group, lane = slot // GROUP, slot % GROUP
    cache.value_scales[group, kv_head, lane] = quantise(head, WEIGHT_LEVELS, levels)
    for i in range(len(head)):
        cache.values[group, kv_head, lane, i] = levels[i]


@njit(inline="always")
def layer_of(cache, layer):  # type: ignore[no-untyped-def]
    """One layer of the cache."""
    return Int8KeyValues(
        cache.keys[layer],
        cache.key_scales[layer],
        cache.values[layer],
        cache.value_scales[layer],
    )
