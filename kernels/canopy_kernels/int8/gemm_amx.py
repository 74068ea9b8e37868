"""Blocks of outputs by matrix tiles; layouts of canopy_kernels.int8.layout.

    q = 256 * high + low                            high signed, low unsigned, a byte each
    sums[t, n] = 256 * (sum over k of high[t, k] w[n, k]) + (sum over k of low[t, k] w[n, k])

The two sums may leave int32 and wrap around, and so does their total, which fits again.
A tile of rows is packed as uint8 [pieces, 2, height, depth], high before low.
"""

from llvmlite import ir
from numba import njit, types
from numba.core import cgutils
from numba.extending import intrinsic

from canopy_kernels.cpu.aligned import LINE
from canopy_kernels.cpu.amx_ir import (
    add_products,
    configure_tiles,
    load_tile,
    release_tiles,
    store_tile,
    zero_tile,
)
from canopy_kernels.cpu.simd_ir import (
    FLOAT,
    FLOATS,
    INT8,
    INT32S,
    INT64,
    broadcast,
    element_address,
    fields,
    load,
    prefetch_line,
    store,
)
from canopy_kernels.int8.layout import BLOCK, QUAD, tile_height

MAX_TILE = 16
PIECE = 16 * LINE  # bytes of a piece of the greatest depth

# Tile registers. Two tiles of rows share what is loaded of the weights.
_HIGH, _LOW = (0, 1), (2, 3)
_ROWS_HIGH, _ROWS_LOW, _WEIGHTS = 4, 5, 6


@njit(inline="always")
def piece_depth(num_inputs):
    """The depth of the pieces into which the inputs of one block are best cut."""
    return min(num_inputs, LINE)


@njit(inline="always")
def packed_size(num_rows, num_inputs):
    """Most bytes of so many packed rows, whatever the depth; the last piece may overlap."""
    return 2 * (num_rows + MAX_TILE) * (num_inputs + LINE)


@njit(cache=True, nogil=True, error_model="numpy")
def pack_row(levels, depth, packed, row, num_rows):
    """Put row `row` of num_rows among the packed ones.

    levels: int16 [K]. The last piece ends with the row, and begins with zeros where it overlaps
    the one before.
    """
    height, size = tile_height(num_rows, MAX_TILE), len(levels)
    num_pieces = -(-size // depth)
    tile = packed[row // height * (2 * num_pieces * height * depth) :]
    for piece in range(num_pieces):
        start = min(piece * depth, size - depth)
        overlap = piece * depth - start
        high = tile[(2 * piece * height + row % height) * depth :]
        low = high[height * depth :]
        for i in range(overlap):
            high[i] = low[i] = 0
        source = levels.ctypes.data + 2 * (start + overlap)
        halves = high.ctypes.data + overlap, low.ctypes.data + overlap
        _split(source, halves, depth - overlap)


@intrinsic
def _split(context, source, halves, count):
    """The high and the low bytes of int16 numbers, a multiple of 4 of them. Addresses."""

    def codegen(context, builder, signature, arguments):
        source, halves, count = arguments
        done = INT64(0)
        for lanes in (16, 4):
            step = INT64(lanes)
            end = builder.mul(builder.udiv(count, step), step)
            with cgutils.for_range_slice(builder, done, end, step, INT64) as (index, _):
                _emit_split(
                    builder, lanes, element_address(builder, source, 2, index), halves, index
                )
            done = end
        return context.get_dummy_value()

    return types.void(source, halves, count), codegen


def _emit_split(builder, lanes, source, halves, index):
    words, bytes_ = ir.VectorType(ir.IntType(16), lanes), ir.VectorType(INT8, lanes)
    number = load(builder, source, words)
    high = builder.lshr(number, ir.Constant(words, [8] * lanes))
    for part, half in zip((high, number), fields(builder, halves), strict=True):
        at = builder.inttoptr(builder.add(half, index), bytes_.as_pointer())
        builder.store(builder.trunc(part, bytes_), at, align=1)


@njit(inline="always")
def begin(num_rows, depth):
    """Prepare the calling thread for rows and pieces of one size."""
    _configure(tile_height(num_rows, MAX_TILE), depth)


@intrinsic
def _configure(context, height, depth):
    def codegen(context, builder, signature, arguments):
        height, depth = arguments
        sums, rows = (height, INT64(LINE)), (height, depth)
        weights = (builder.udiv(depth, INT64(QUAD)), INT64(LINE))
        configure_tiles(builder, [sums] * 4 + [rows] * 2 + [weights])
        return context.get_dummy_value()

    return types.void(height, depth), codegen


@intrinsic
def end(context):
    """Give up what `begin` prepared."""

    def codegen(context, builder, signature, arguments):
        release_tiles(builder)
        return context.get_dummy_value()

    return types.void(), codegen


@njit(cache=True, nogil=True, error_model="numpy")
def block_of_outputs(a_operand, b_operand, out):
    """16 outputs of every row, between `begin` and `end`.

    a_operand: address of the packed rows, their number, address of their scales.
    b_operand: address of the block; address of the distances of its pieces from there (int64),
    their number and depth; addresses of the outputs' scales and bias; bytes from what is read of
    the block to what is asked for ahead of its use, 0 for nothing.
    out: address, distance of rows in numbers.
    """
    packed, num_rows, row_scales = a_operand
    target, stride = out
    height = tile_height(num_rows, MAX_TILE)
    size = 2 * b_operand[2] * height * b_operand[3]
    for row in range(0, num_rows, 2 * height):
        count = min(num_rows - row, 2 * height)
        rows = (packed + row // height * size, size, height * b_operand[3])
        finish = (height, count, row_scales + 4 * row, target + 4 * row * stride, stride)
        _tiles(count > height, rows, b_operand, finish)


@intrinsic
def _tiles(context, are_two, rows, b_operand, finish):
    """The outputs of one tile of rows, or of two."""

    def codegen(context, builder, signature, arguments):
        parts = [fields(builder, argument) for argument in arguments[1:]]
        sums = cgutils.alloca_once(builder, ir.ArrayType(INT8, 4 * PIECE))
        sums.align = LINE
        first = builder.ptrtoint(sums, INT64)
        with builder.if_else(arguments[0]) as branches:
            for branch, num_tiles in zip(branches, (2, 1), strict=True):
                with branch:
                    _emit_sums(builder, num_tiles, parts, first)
        _emit_finish(builder, parts[1], parts[2], first)
        return context.get_dummy_value()

    return types.void(are_two, rows, b_operand, finish), codegen


def _emit_sums(builder, num_tiles, parts, sums):
    """Leave the high sums of all rows at an address, and the low ones two pieces behind."""
    (rows, tile_size, half), b_operand, finish = parts
    block, distances, num_pieces, depth, *_, ahead = b_operand
    tiles = range(num_tiles)
    for tile in tiles:
        zero_tile(builder, _HIGH[tile])
        zero_tile(builder, _LOW[tile])
    with cgutils.for_range(builder, num_pieces, intp=INT64) as loop:
        distance = load(builder, element_address(builder, distances, 8, loop.index), INT64)
        weights = builder.add(block, distance)
        load_tile(builder, _WEIGHTS, weights, INT64(LINE))
        with builder.if_then(builder.icmp_unsigned("!=", ahead, INT64(0))):
            for line in range(0, PIECE, LINE):
                prefetch_line(builder, builder.add(weights, builder.add(ahead, INT64(line))))
        piece = builder.add(rows, builder.mul(loop.index, builder.mul(half, INT64(2))))
        for tile in tiles:
            high = builder.add(piece, builder.mul(tile_size, INT64(tile)))
            load_tile(builder, _ROWS_HIGH, high, depth)
            load_tile(builder, _ROWS_LOW, builder.add(high, half), depth)
            add_products(builder, _HIGH[tile], _ROWS_HIGH, _WEIGHTS, rows_are_signed=True)
            add_products(builder, _LOW[tile], _ROWS_LOW, _WEIGHTS, rows_are_signed=False)
    for tile in tiles:
        at = builder.add(sums, builder.mul(finish[0], INT64(tile * LINE)))
        store_tile(builder, _HIGH[tile], at, INT64(LINE))
        store_tile(builder, _LOW[tile], builder.add(at, INT64(2 * PIECE)), INT64(LINE))


def _emit_finish(builder, b_operand, finish, sums):
    """Join the halves of the sums, and scale them."""
    *_, scales, bias, _ = b_operand
    _, count, row_scales, out, stride = finish
    by_output = load(builder, scales, FLOATS), load(builder, bias, FLOATS)
    with cgutils.for_range(builder, count, intp=INT64) as loop:
        scaled = joined_row(builder, sums, 2 * PIECE, row_scales, loop.index)
        result = builder.fadd(builder.fmul(scaled, by_output[0]), by_output[1])
        store(builder, result, element_address(builder, out, 4, builder.mul(loop.index, stride)))


def joined_row(builder, sums, low_distance, row_scales, index):
    """A row's sums from its high ones and its low ones that far behind, times the row's scale."""
    high_at = element_address(builder, sums, LINE, index)
    high = load(builder, high_at, INT32S)
    low = load(builder, builder.add(high_at, INT64(low_distance)), INT32S)
    total = builder.add(builder.shl(high, ir.Constant(INT32S, [8] * BLOCK)), low)
    row_scale = load(builder, element_address(builder, row_scales, 4, index), FLOAT)
    return builder.fmul(builder.sitofp(total, FLOATS), broadcast(builder, row_scale))
