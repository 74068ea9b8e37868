"""Linear layers on exact integers: int8 weights, int16 activations, int32 sums.

    rows[t, k]    ~ q[t, k] * row_scales[t]          |q| <= activation_levels(K)
    weight[n, k]  ~ w[n, k] * weight_scales[n]       |w| <= 127
    sums[t, n]    = sum over k of q[t, k] * w[n, k]
    out[t, n]     = float(sums[t, n]) * row_scales[t] * weight_scales[n] + bias[n]

    q        int16 [T, K']           K' = K rounded up to the next even number
    weight   int8 [N', K]            packed as [N'/16, K'/2, 16, 2]: 16 outputs side by side, two
                                     inputs together; N' = N rounded up to a multiple of 16
    out      float32 [T, N']

No sum can leave int32, so its value depends on nothing but the row and the weight, in whatever
order and on however many threads it is computed. A pair of int16 products added to one int32 is
a single instruction of AVX2, AVX-512 and VNNI; the tile below is written in portable vector
operations that LLVM turns into it, and into plain multiplications on other CPUs.
"""

import numpy as np
from llvmlite import ir
from numba import njit, types
from numba.extending import intrinsic

from canopy_kernels.vector_ir import (
    FLOAT,
    FLOATS,
    INT8_PAIRS,
    INT16_PAIRS,
    INT32,
    INT32_PAIRS,
    INT32S,
    INT64,
    LANES,
    PAIR,
    add_pairs,
    counted_loop,
    fields,
    load,
    place,
    spread,
    store,
)

BLOCK = LANES  # outputs of a packed block
WEIGHT_LEVELS = 127
_INT32_LIMIT = 2**31 - 1
_INT16_LIMIT = 2**15 - 1


def activation_levels(num_inputs: int) -> int:
    """The largest |q| with which no sum of so many products leaves int32."""
    return min(_INT16_LIMIT, _INT32_LIMIT // (WEIGHT_LEVELS * num_inputs))


def quantise_weight(weight: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """float32 [N, K] to packed int8 blocks and scales float32 [N'], one per output."""
    largest = np.abs(weight).max(axis=1)
    scales = np.where(largest > 0, largest / WEIGHT_LEVELS, 1).astype(np.float32)
    levels = np.rint(weight / scales[:, None]).astype(np.int8)
    return pack_weight(levels), pad_outputs(scales)


def pack_weight(levels: np.ndarray) -> np.ndarray:
    """int8 [N, K] to [N'/16, K'/2, 16, 2], padded with zeros."""
    num_outputs, num_inputs = levels.shape
    padding = ((0, -num_outputs % BLOCK), (0, -num_inputs % PAIR))
    padded = np.pad(levels, padding)
    blocks = padded.reshape(-1, BLOCK, padded.shape[1] // PAIR, PAIR)
    return np.ascontiguousarray(blocks.transpose(0, 2, 1, 3))


def unpack_weight(blocks: np.ndarray) -> np.ndarray:
    """int8 [N', K']: the inverse of `pack_weight`, padding kept."""
    num_blocks, num_pairs = blocks.shape[:2]
    return blocks.transpose(0, 2, 1, 3).reshape(num_blocks * BLOCK, num_pairs * PAIR)


def pad_outputs(vector: np.ndarray) -> np.ndarray:
    """[N] to [N'], padded with zeros."""
    return np.pad(vector, (0, -len(vector) % BLOCK))


def int8_linear_reference(
    q: np.ndarray,
    row_scales: np.ndarray,
    blocks: np.ndarray,
    weight_scales: np.ndarray,
    bias: np.ndarray,
) -> np.ndarray:
    """The formula of the module docstring in NumPy; float32 [T, N']."""
    sums = q.astype(np.int64) @ unpack_weight(blocks).astype(np.int64).T
    return sums.astype(np.float32) * row_scales[:, None] * weight_scales + bias


def int8_linear(
    q: np.ndarray,
    row_scales: np.ndarray,
    blocks: np.ndarray,
    weight_scales: np.ndarray,
    bias: np.ndarray,
) -> np.ndarray:
    """`int8_linear_reference`, to the bit, on one thread."""
    out = np.empty((len(q), len(weight_scales)), np.float32)
    linear_share(q, row_scales, (blocks, weight_scales, bias), out, 0, 1)
    return out


@njit(cache=True, nogil=True, error_model="numpy")
def linear_share(q, row_scales, linear, out, worker, num_workers):  # type: ignore[no-untyped-def]
    """Worker's part of the outputs, for all rows. linear: blocks, weight scales, bias."""
    blocks, weight_scales, bias = linear
    num_blocks, num_pairs = blocks.shape[0], blocks.shape[1]
    row_side = (q.ctypes.data, row_scales.ctypes.data, q.shape[1] // PAIR, out.shape[1])
    first, end = num_blocks * worker // num_workers, num_blocks * (worker + 1) // num_workers
    for block in range(first, end):
        column = 4 * BLOCK * block
        weight_side = (
            blocks.ctypes.data + block * num_pairs * BLOCK * PAIR,
            weight_scales.ctypes.data + column,
            bias.ctypes.data + column,
            num_pairs,
        )
        block_of_outputs(len(row_scales), row_side, weight_side, out.ctypes.data + column)


# Rows of the largest tile: with two vectors of sums for each it fills AVX2's registers.
_TILE_ROWS = 6


@njit(cache=True, nogil=True, error_model="numpy")
def block_of_outputs(num_rows, row_side, weight_side, out):  # type: ignore[no-untyped-def]
    """16 outputs of every row. out: address.

    row_side: addresses of q and of the row scales; distance of rows in q (pairs) and in out.
    weight_side: addresses of the block, its scales and its bias; number of pairs.
    """
    q, row_scales, q_stride, out_stride = row_side
    for row in range(0, num_rows, _TILE_ROWS):
        tile_side = (
            q + 2 * PAIR * row * q_stride,
            row_scales + 4 * row,
            q_stride,
            out_stride,
            out + 4 * row * out_stride,
        )
        _tile_of(min(num_rows - row, _TILE_ROWS), tile_side, weight_side)


@njit(inline="always")
def _tile_of(num_rows, tile_side, weight_side):  # type: ignore[no-untyped-def]
    if num_rows == 6:
        _tile(6, tile_side, weight_side)
    elif num_rows == 5:
        _tile(5, tile_side, weight_side)
    elif num_rows == 4:
        _tile(4, tile_side, weight_side)
    elif num_rows == 3:
        _tile(3, tile_side, weight_side)
    elif num_rows == 2:
        _tile(2, tile_side, weight_side)
    else:
        _tile(1, tile_side, weight_side)


@intrinsic(prefer_literal=True)
def _tile(context, num_rows, tile_side, weight_side):  # type: ignore[no-untyped-def]
    """One block of outputs for num_rows rows, all sums in registers."""

    def codegen(context, builder, signature, arguments):  # type: ignore[no-untyped-def]
        q, row_scales, q_stride, out_stride, out = fields(builder, arguments[1])
        weight, weight_scales, bias, num_pairs = fields(builder, arguments[2])
        rows = [ir.Constant(INT64, row) for row in range(num_rows.literal_value)]

        def add_products(pair, sums):  # type: ignore[no-untyped-def]
            levels = load(builder, place(builder, weight, BLOCK * PAIR, pair), INT8_PAIRS)
            wide = builder.sext(levels, INT32_PAIRS)
            added = []
            for row, row_sums in zip(rows, sums, strict=True):
                position = builder.add(builder.mul(row, q_stride), pair)
                both = spread(builder, load(builder, place(builder, q, 4, position), INT32))
                levels = builder.sext(builder.bitcast(both, INT16_PAIRS), INT32_PAIRS)
                added.append(builder.add(row_sums, add_pairs(builder, builder.mul(levels, wide))))
            return added

        zeros = [ir.Constant(INT32S, None)] * len(rows)
        sums = counted_loop(builder, num_pairs, zeros, add_products)
        by_output = load(builder, weight_scales, FLOATS), load(builder, bias, FLOATS)
        for row, row_sums in zip(rows, sums, strict=True):
            row_scale = spread(builder, load(builder, place(builder, row_scales, 4, row), FLOAT))
            scaled = builder.fmul(builder.sitofp(row_sums, FLOATS), row_scale)
            result = builder.fadd(builder.fmul(scaled, by_output[0]), by_output[1])
            store(builder, result, place(builder, out, 4, builder.mul(row, out_stride)))
        return context.get_dummy_value()

    return types.void(num_rows, tile_side, weight_side), codegen
