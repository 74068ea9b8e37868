"""Products of one tile of rows, held in registers, with many blocks; see int8_matrix_tiles.

For blocks of up to two pieces. Between `begin` and `end` a thread holds a tile of rows with `hold`
and multiplies it with any number of blocks by `multiply`.
"""

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from canopy_kernels.cpu.aligned import LINE
from canopy_kernels.cpu.amx_ir import (
    add_products,
    configure_tiles,
    load_tile,
    store_tile,
    zero_tile,
)
from canopy_kernels.cpu.simd_ir import (
    FLOATS,
    INT8,
    INT64,
    element_address,
    fields,
    load,
    store,
)
from canopy_kernels.int8.gemm_amx import (
    MAX_TILE,
    PIECE,
    end,
    joined_row,
    pack_row,
    packed_size,
    piece_depth,
)
from canopy_kernels.int8.layout import QUAD

MOST_PIECES = 2

# Tile registers.
_HIGH, _LOW, _WEIGHTS = 0, 1, 6
_ROWS = ((2, 3), (4, 5))  # high and low of each piece


@intrinsic
def begin(context, height, depth):
    """Prepare the calling thread for tiles of `height` rows and pieces of one depth."""

    def codegen(context, builder, signature, arguments):
        height, depth = arguments
        sums, rows = (height, INT64(LINE)), (height, depth)
        weights = (builder.udiv(depth, INT64(QUAD)), INT64(LINE))
        configure_tiles(builder, [sums] * 2 + [rows] * 4 + [weights])
        return context.get_dummy_value()

    return types.void(types.int64, types.int64), codegen


@intrinsic
def hold(context, num_pieces, tile, height, depth):
    """Load a tile of packed rows, by its address."""

    def codegen(context, builder, signature, arguments):
        num_pieces, tile, height, depth = arguments
        half = builder.mul(height, depth)
        for number, registers in enumerate(_ROWS):
            with _if_piece(builder, number, num_pieces):
                for part, register in enumerate(registers):
                    offset = builder.mul(half, INT64(2 * number + part))
                    load_tile(builder, register, builder.add(tile, offset), depth)
        return context.get_dummy_value()

    return types.void(types.int64, types.intp, types.int64, types.int64), codegen


def _if_piece(builder, number, num_pieces):
    return builder.if_then(builder.icmp_unsigned("<", INT64(number), num_pieces))


@intrinsic
def multiply(context, num_pieces, b_operand, a_operand, out):
    """16 outputs of every row that is held.

    b_operand: address of the block, distance of its second piece, address of its scales.
    a_operand: number of rows, address of their scales. out: address, distance of rows in numbers.
    """

    def codegen(context, builder, signature, arguments):
        parts = [fields(builder, argument) for argument in arguments[1:]]
        sums = cgutils.alloca_once(builder, ir.ArrayType(INT8, 2 * PIECE))
        sums.align = LINE
        first = builder.ptrtoint(sums, INT64)
        _emit_sums(builder, arguments[0], parts[0], first)
        _emit_finish(builder, *parts, first)
        return context.get_dummy_value()

    return types.void(types.int64, b_operand, a_operand, out), codegen


def _emit_sums(builder, num_pieces, b_operand, sums):
    """Leave the high sums of all rows at an address, and the low ones a piece behind."""
    block, distance, _ = b_operand
    for register in (_HIGH, _LOW):
        zero_tile(builder, register)
    for number, (high, low) in enumerate(_ROWS):
        with _if_piece(builder, number, num_pieces):
            at = builder.add(block, builder.mul(distance, INT64(number)))
            load_tile(builder, _WEIGHTS, at, INT64(LINE))
            add_products(builder, _HIGH, high, _WEIGHTS, rows_are_signed=True)
            add_products(builder, _LOW, low, _WEIGHTS, rows_are_signed=False)
    store_tile(builder, _HIGH, sums, INT64(LINE))
    store_tile(builder, _LOW, builder.add(sums, INT64(PIECE)), INT64(LINE))


def _emit_finish(builder, b_operand, a_operand, out, sums):
    """Join the halves of the sums, and scale them."""
    (count, row_scales), (target, stride) = a_operand, out
    by_output = load(builder, b_operand[2], FLOATS)
    with cgutils.for_range(builder, count, intp=INT64) as loop:
        scaled = joined_row(builder, sums, PIECE, row_scales, loop.index)
        result = builder.fmul(scaled, by_output)
        store(builder, result, element_address(builder, target, 4, builder.mul(loop.index, stride)))


__all__ = [
    "MAX_TILE",
    "MOST_PIECES",
    "begin",
    "end",
    "hold",
    "multiply",
    "pack_row",
    "packed_size",
    "piece_depth",
]
