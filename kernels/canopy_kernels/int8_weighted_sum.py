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
    has_wide_registers,
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


# Heads of a tile: with the columns of one vector their sums fill AVX2's registers. Where there are
# more and wider ones, a tile takes more columns, so that fewer additions wait for the one before.
_TILE_HEADS = 6
_TILE_COLUMNS = 4 * LANES if has_wide_registers() else LANES


@njit(cache=True, nogil=True, error_model="numpy")
def weighted_sums(weights, places, rows, sums):  # type: ignore[no-untyped-def]
    """Write the sums of the H heads of weights. rows: address; n >= 1."""
    num_heads, size = len(weights), sums.shape[1]
    for head in range(0, num_heads, _TILE_HEADS):
        column = 0
        while column < size:
            sides = (
                weights.ctypes.data + 4 * head * weights.shape[1],
                weights.shape[1],
                places.ctypes.data,
                len(places),
                rows + column,
                sums.ctypes.data + 4 * (head * size + column),
                size,
            )
            is_whole = column + _TILE_COLUMNS <= size
            _tile(min(num_heads - head, _TILE_HEADS), is_whole, sides)
            column += _TILE_COLUMNS if is_whole else LANES


@intrinsic
def _tile(context, num_heads, is_whole, sides):  # type: ignore[no-untyped-def]
    """Some columns of the sums of 1 to _TILE_HEADS heads, in registers: a vector, or a whole tile.

    sides: addresses of weights, places, value rows and sums, with the distance of heads in the
    weights, the number of places, and the size of a row of values and of sums.
    """

    def codegen(context, builder, signature, arguments):  # type: ignore[no-untyped-def]
        parts = fields(builder, arguments[2])
        after = builder.append_basic_block("tiled")
        with builder.if_else(arguments[1]) as branches:
            for branch, columns in zip(branches, (_TILE_COLUMNS, LANES), strict=True):
                with branch:
                    _emit_by_heads(builder, arguments[0], columns // LANES, parts)
        builder.branch(after)
        builder.position_at_end(after)
        return context.get_dummy_value()

    return types.void(num_heads, is_whole, sides), codegen


def _emit_by_heads(builder, num_heads, num_vectors, sides):  # type: ignore[no-untyped-def]
    after = builder.append_basic_block("summed")
    choice = builder.switch(num_heads, after)
    for count in range(1, _TILE_HEADS + 1):
        block = builder.append_basic_block(f"heads{count}")
        choice.add_case(ir.Constant(num_heads.type, count), block)
        builder.position_at_end(block)
        _emit_tile(builder, count, num_vectors, sides)
        builder.branch(after)
    builder.position_at_end(after)


def _emit_tile(builder, num_heads, num_vectors, sides):  # type: ignore[no-untyped-def]
    weights, stride, places, num_places, rows, sums, size = sides
    heads = [INT64(head) for head in range(num_heads)]
    bytes_of_vectors = [INT64(LANES * vector) for vector in range(num_vectors)]

    def add_row(index, old):  # type: ignore[no-untyped-def]
        row = load(builder, place(builder, places, 8, index), INT64)
        first = builder.add(rows, builder.mul(row, size))
        values = [
            builder.sitofp(load(builder, builder.add(first, offset), INT8S), FLOATS)
            for offset in bytes_of_vectors
        ]
        added = []
        for number, head in enumerate(heads):
            position = builder.add(builder.mul(head, stride), index)
            weight = spread(builder, load(builder, place(builder, weights, 4, position), FLOAT))
            own = old[number * num_vectors : (number + 1) * num_vectors]
            for vector, total in zip(values, own, strict=True):
                added.append(multiply_add(builder, weight, vector, total))
        return added

    zeros = [ir.Constant(FLOATS, None)] * (num_heads * num_vectors)
    totals = iter(counted_loop(builder, num_places, zeros, add_row))
    for head in heads:
        first = place(builder, sums, 4, builder.mul(head, size))
        for offset in bytes_of_vectors:
            store(builder, next(totals), builder.add(first, builder.mul(INT64(4), offset)))
