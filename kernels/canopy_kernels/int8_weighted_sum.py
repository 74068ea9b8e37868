"""Weighted sums of int8 rows that lie anywhere, added in the order in which they are named.

sums[h, d] = weights[h, 0] * rows[places[0], d] + weights[h, 1] * rows[places[1], d] + ...

weights   float32 [H, n or more]
places    int64 [n]
rows      int8 [., D]               D a multiple of 16
sums      float32 [H, D]
"""

import numpy as np
from llvmlite import ir
from numba import njit, types
from numba.extending import intrinsic

from canopy_kernels.vector_ir import (
    FLOAT,
    FLOATS,
    INT8S,
    INT64,
    LANES,
    counted_loop,
    fields,
    load,
    multiply_add,
    place,
    spread,
    store,
)


def weighted_sums_reference(
    weights: np.ndarray, places: np.ndarray, rows: np.ndarray
) -> np.ndarray:
    """The formula of the module docstring in float64."""
    return weights[:, : len(places)].astype(np.float64) @ rows[places].astype(np.float64)


# Heads whose sums fill AVX2's registers.
_TILE_HEADS = 6


@njit(cache=True, nogil=True, error_model="numpy")
def weighted_sums(weights, places, rows, sums):  # type: ignore[no-untyped-def]
    """Write the sums of the H heads of weights. rows: address; n >= 1."""
    num_heads, size = len(weights), sums.shape[1]
    for head in range(0, num_heads, _TILE_HEADS):
        for column in range(0, size, LANES):
            sides = (
                weights.ctypes.data + 4 * head * weights.shape[1],
                weights.shape[1],
                places.ctypes.data,
                len(places),
                rows + column,
                sums.ctypes.data + 4 * (head * size + column),
                size,
            )
            _tile_of(min(num_heads - head, _TILE_HEADS), sides)


@njit(inline="always")
def _tile_of(num_heads, sides):  # type: ignore[no-untyped-def]
    if num_heads == 6:
        _tile(6, sides)
    elif num_heads == 5:
        _tile(5, sides)
    elif num_heads == 4:
        _tile(4, sides)
    elif num_heads == 3:
        _tile(3, sides)
    elif num_heads == 2:
        _tile(2, sides)
    else:
        _tile(1, sides)


@intrinsic(prefer_literal=True)
def _tile(context, num_heads, sides):  # type: ignore[no-untyped-def]
    """Sixteen columns of the sums of num_heads heads, in registers.

    sides: addresses of weights, places, value rows and sums, with the distance of heads in the
    weights, the number of places, and the size of a row of values and of sums.
    """

    def codegen(context, builder, signature, arguments):  # type: ignore[no-untyped-def]
        weights, stride, places, num_places, rows, sums, size = fields(builder, arguments[1])
        heads = [ir.Constant(INT64, head) for head in range(num_heads.literal_value)]

        def add_row(index, old):  # type: ignore[no-untyped-def]
            row = load(builder, place(builder, places, 8, index), INT64)
            levels = load(builder, builder.add(rows, builder.mul(row, size)), INT8S)
            values = builder.sitofp(levels, FLOATS)
            added = []
            for head, head_sums in zip(heads, old, strict=True):
                position = builder.add(builder.mul(head, stride), index)
                weight = spread(builder, load(builder, place(builder, weights, 4, position), FLOAT))
                added.append(multiply_add(builder, weight, values, head_sums))
            return added

        zeros = [ir.Constant(FLOATS, None)] * len(heads)
        for head, head_sums in zip(
            heads, counted_loop(builder, num_places, zeros, add_row), strict=True
        ):
            store(builder, head_sums, place(builder, sums, 4, builder.mul(head, size)))
        return context.get_dummy_value()

    return types.void(num_heads, sides), codegen
