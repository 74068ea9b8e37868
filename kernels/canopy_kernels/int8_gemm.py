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

import functools

import numpy as np
from llvmlite import ir
from numba import njit, types
from numba.core import cgutils
from numba.extending import intrinsic

from canopy_kernels.vector_ir import (
    FLOAT,
    FLOATS,
    INT8_PAIRS,
    INT16_PAIRS,
    INT32,
    INT32_PAIRS,
    INT64,
    LANES,
    PAIR,
    ZEROS,
    add_pairs,
    fields,
    has_wide_registers,
    load,
    place,
    prefetch_line,
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


# Rows of the largest tile, whose sums fill the vector registers: a tree of 16 nodes and its anchor
# where a row's sums are one register, and 6 where they are two of AVX2's sixteen.
MAX_TILE = 17 if has_wide_registers() else 6
_PREFETCHED = 8192  # bytes of weights between what is read and what is asked for
_MAX_CHAINS = 8  # additions under way at once


@njit(cache=True, nogil=True, error_model="numpy")
def linear_share(q, row_scales, linear, out, worker, num_workers):  # type: ignore[no-untyped-def]
    """Worker's part of the outputs, for all rows. linear: blocks, weight scales, bias."""
    blocks, weight_scales, bias = linear
    num_blocks, num_pairs = blocks.shape[0], blocks.shape[1]
    tiles = pack_rows(q)
    row_side = (tiles.ctypes.data, row_scales.ctypes.data, out.shape[1])
    first, end = num_blocks * worker // num_workers, num_blocks * (worker + 1) // num_workers
    for block in range(first, end):
        column = 4 * BLOCK * block
        weight_side = (
            blocks.ctypes.data + block * num_pairs * BLOCK * PAIR,
            weight_scales.ctypes.data + column,
            bias.ctypes.data + column,
            num_pairs,
            _PREFETCHED,
        )
        block_of_outputs(len(row_scales), row_side, weight_side, out.ctypes.data + column)


@njit(inline="always")
def _num_tiles(num_rows):  # type: ignore[no-untyped-def]
    return -(-num_rows // MAX_TILE)


@njit(inline="always")
def _first_row(tile, num_rows):  # type: ignore[no-untyped-def]
    """Tiles share out the rows as evenly as can be."""
    return num_rows * tile // _num_tiles(num_rows)


@njit(cache=True, nogil=True, error_model="numpy")
def pack_rows(q):  # type: ignore[no-untyped-def]
    """q int16 [T, K'] as tiles of at most MAX_TILE rows, one after the other: int32 [T * K'/2].

    A tile is int32 [K'/2, rows], a pair of q in each: what a step of the sums reads is one piece.
    """
    pairs = q.view(np.int32)
    num_rows, num_pairs = pairs.shape
    if num_rows == 1:
        return pairs.reshape(-1)
    packed = np.empty(pairs.size, np.int32)
    for tile in range(_num_tiles(num_rows)):
        row, end = _first_row(tile, num_rows), _first_row(tile + 1, num_rows)
        target = packed[row * num_pairs : end * num_pairs].reshape(num_pairs, end - row)
        for pair in range(num_pairs):
            for index in range(end - row):
                target[pair, index] = pairs[row + index, pair]
    return packed


@njit(cache=True, nogil=True, error_model="numpy")
def block_of_outputs(num_rows, row_side, weight_side, out):  # type: ignore[no-untyped-def]
    """16 outputs of every row. out: address.

    row_side: addresses of the packed rows and of their scales; distance of rows in out.
    weight_side: addresses of the block, its scales and its bias; number of pairs; bytes from what
    is read of the block to what is asked for ahead of its use.
    """
    tiles, row_scales, out_stride = row_side
    for tile in range(_num_tiles(num_rows)):
        row, end = _first_row(tile, num_rows), _first_row(tile + 1, num_rows)
        tile_side = (
            tiles + 2 * PAIR * row * weight_side[3],
            row_scales + 4 * row,
            out_stride,
            out + 4 * row * out_stride,
        )
        _tile(end - row, tile_side, weight_side)


@intrinsic
def _tile(context, num_rows, tile_side, weight_side):  # type: ignore[no-untyped-def]
    """One block of outputs for 1 to MAX_TILE rows, all sums in registers."""

    def codegen(context, builder, signature, arguments):  # type: ignore[no-untyped-def]
        tile_fields, weight_fields = (fields(builder, a) for a in arguments[1:])
        after = builder.append_basic_block("tiled")
        choice = builder.switch(arguments[0], after)
        for count in range(1, MAX_TILE + 1):
            block = builder.append_basic_block(f"rows{count}")
            choice.add_case(ir.Constant(arguments[0].type, count), block)
            builder.position_at_end(block)
            _emit_tile(builder, count, tile_fields, weight_fields)
            builder.branch(after)
        builder.position_at_end(after)
        return context.get_dummy_value()

    return types.void(num_rows, tile_side, weight_side), codegen


def _emit_tile(builder, num_rows, tile_fields, weight_fields):  # type: ignore[no-untyped-def]
    """Few rows keep several sums each, since one sum alone waits for its last addition."""
    tile, row_scales, out_stride, out = tile_fields
    weight, weight_scales, bias, num_pairs, ahead = weight_fields
    num_chains = 1 << max((min(MAX_TILE, _MAX_CHAINS) // num_rows).bit_length() - 1, 0)
    sums = [
        [cgutils.alloca_once_value(builder, ZEROS) for _ in range(num_rows)]
        for _ in range(num_chains)
    ]
    step = INT64(num_chains)
    whole = builder.mul(builder.udiv(num_pairs, step), step)
    with cgutils.for_range_slice(builder, INT64(0), whole, step, INT64) as (pair, _):
        for chain, totals in enumerate(sums):
            _emit_products(builder, tile, (weight, ahead), builder.add(pair, INT64(chain)), totals)
    with cgutils.for_range_slice(builder, whole, num_pairs, INT64(1), INT64) as (pair, _):
        _emit_products(builder, tile, (weight, ahead), pair, sums[0])
    by_output = load(builder, weight_scales, FLOATS), load(builder, bias, FLOATS)
    for index, chains in enumerate(zip(*sums, strict=True)):
        total = functools.reduce(builder.add, map(builder.load, chains))
        row_scale = load(builder, place(builder, row_scales, 4, INT64(index)), FLOAT)
        scaled = builder.fmul(builder.sitofp(total, FLOATS), spread(builder, row_scale))
        result = builder.fadd(builder.fmul(scaled, by_output[0]), by_output[1])
        store(builder, result, place(builder, out, 4, builder.mul(INT64(index), out_stride)))


def _emit_products(builder, tile, block, pair, totals):  # type: ignore[no-untyped-def]
    """Add a pair of inputs, for 16 outputs, to the sums of every row of the tile."""
    weight, ahead = block
    address = place(builder, weight, BLOCK * PAIR, pair)
    prefetch_line(builder, builder.add(address, ahead))
    weights = builder.sext(load(builder, address, INT8_PAIRS), INT32_PAIRS)
    first = place(builder, tile, 4 * len(totals), pair)
    for row, total in enumerate(totals):
        both = spread(builder, load(builder, builder.add(first, INT64(4 * row)), INT32))
        levels = builder.sext(builder.bitcast(both, INT16_PAIRS), INT32_PAIRS)
        products = add_pairs(builder, builder.mul(levels, weights))
        builder.store(builder.add(builder.load(total), products), total)
