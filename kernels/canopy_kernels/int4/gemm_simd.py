"""Blocks of outputs of grouped weights; layouts of canopy_kernels.int4.layout.

    out[t, n] = bias[n] + sum over g of (dot * row_scale) * scale + row_sum * minimum

where dot[t, n, g] is the exact integer sum of the products of a group, row_scale[t, g] and
row_sum[t, g] belong to the row and scale[n, g] and minimum[n, g] to the output. Groups follow each
other in ascending order, and every product and sum of floats is rounded by itself, so the result
depends on nothing but the row and the weights.
"""

from llvmlite import ir
from numba import njit, types
from numba.core import cgutils
from numba.extending import intrinsic

from canopy_kernels.cpu.aligned import LINE
from canopy_kernels.cpu.simd_ir import (
    FLOAT,
    INT8,
    INT32,
    INT64,
    broadcast,
    element_address,
    fields,
    has_feature,
    load,
    prefetch_line,
    store,
)
from canopy_kernels.int4.layout import GRID_SIZE, GROUP, ROW_SIZE, record_size
from canopy_kernels.int4.products import (
    Instructions,
    add_quad,
    native,
    no_sums,
    num_lines,
    num_parts,
    total,
    weight_parts,
)
from canopy_kernels.int8.layout import BLOCK, QUAD, tile_height

NATIVE = native()
MAX_TILE = NATIVE.most_rows
_HALF = ir.HalfType()
_INT16 = ir.IntType(16)


def tile_of(instructions: Instructions, bits: int):
    """An intrinsic: one block of outputs for 1 to `instructions.most_rows` rows of a tile.

    Its arguments: number of rows; address of their tile; (address of the block, number of groups,
    address of the bias, bytes between what is read and what is asked for); (address of the first
    output, distance of rows in numbers).
    """

    @intrinsic
    def tile(context, num_rows, rows, b_operand, out):
        def codegen(context, builder, signature, arguments):
            sides = [fields(builder, argument) for argument in arguments[2:]]
            after = builder.append_basic_block("tiled")
            choice = builder.switch(arguments[0], after)
            for count in range(1, instructions.most_rows + 1):
                case = builder.append_basic_block(f"rows{count}")
                choice.add_case(ir.Constant(arguments[0].type, count), case)
                builder.position_at_end(case)
                for first in range(0, BLOCK, instructions.lanes):
                    _Tile(builder, instructions, bits, first).emit(count, arguments[1], *sides)
                builder.branch(after)
            builder.position_at_end(after)
            return context.get_dummy_value()

        return types.void(num_rows, rows, b_operand, out), codegen

    return tile


class _Tile:
    """Code for the outputs of a block whose sums fill a register, from `first` on."""

    def __init__(self, builder, instructions: Instructions, bits: int, first: int) -> None:
        self._builder = builder
        self._instructions = instructions
        self._bits = bits
        self._first = first
        self._floats = ir.VectorType(FLOAT, instructions.lanes)

    def emit(self, num_rows, rows, b_operand, out):
        builder = self._builder
        block, num_groups, bias, ahead = b_operand
        at_bias = builder.add(bias, INT64(4 * self._first))
        start = load(builder, at_bias, self._floats)
        results = [cgutils.alloca_once_value(builder, start) for _ in range(num_rows)]
        with cgutils.for_range(builder, num_groups, intp=INT64) as loop:
            record = element_address(builder, block, record_size(self._bits), loop.index)
            for offset in range(0, record_size(self._bits), LINE):
                prefetch_line(builder, builder.add(record, builder.add(ahead, INT64(offset))))
            of_rows = element_address(builder, rows, num_rows * ROW_SIZE, loop.index)
            self._add_group(record, of_rows, results)
        target, stride = out
        for row, result in enumerate(results):
            at = element_address(builder, target, 4, builder.mul(INT64(row), stride))
            store(builder, builder.load(result), builder.add(at, INT64(4 * self._first)))

    def _add_group(self, record, rows, results):
        builder = self._builder
        dots = self._dots(record, rows, len(results))
        scale, minimum = (self._halves(record, 2 * BLOCK * part) for part in range(2))
        for row, (dot, result) in enumerate(zip(dots, results, strict=True)):
            row_scale, row_sum = (
                broadcast(
                    builder,
                    load(builder, builder.add(rows, INT64(row * ROW_SIZE + GROUP + at)), FLOAT),
                    self._instructions.lanes,
                )
                for at in (0, 4)
            )
            scaled = builder.fmul(builder.sitofp(dot, self._floats), row_scale)
            added = builder.fadd(builder.fmul(scaled, scale), builder.fmul(row_sum, minimum))
            builder.store(builder.fadd(builder.load(result), added), result)

    def _dots(self, record, rows, num_rows):
        """int32 sums of a group for every row."""
        builder, instructions = self._builder, self._instructions
        line = ir.VectorType(INT8, QUAD * instructions.lanes)
        parts = num_parts(instructions, self._bits)
        sums = [[no_sums(instructions)] * parts for _ in range(num_rows)]
        for number in range(num_lines(self._bits)):
            at = GRID_SIZE + number * LINE + QUAD * self._first
            levels = load(builder, builder.add(record, INT64(at)), line)
            for quad, weights, part in weight_parts(
                builder, instructions, levels, self._bits, number
            ):
                for row in range(num_rows):
                    at = row * ROW_SIZE + QUAD * quad
                    four = load(builder, builder.add(rows, INT64(at)), INT32)
                    sums[row][part] = add_quad(
                        builder, instructions, sums[row][part], weights, four
                    )
        return [total(builder, instructions, of_row) for of_row in sums]

    def _halves(self, record, offset):
        """Half floats of the outputs, as floats."""
        builder, lanes = self._builder, self._instructions.lanes
        at = builder.add(record, INT64(offset + 2 * self._first))
        if has_feature("f16c"):
            return builder.fpext(load(builder, at, ir.VectorType(_HALF, lanes)), self._floats)
        return widened(builder, load(builder, at, ir.VectorType(_INT16, lanes)))


def widened(builder, halves):
    """Finite half floats, given as int16, as floats, without the instruction for it."""
    lanes = halves.type.count
    words, floats = ir.VectorType(INT32, lanes), ir.VectorType(FLOAT, lanes)

    def constant(value):
        return ir.Constant(words, [value] * lanes)

    bits = builder.zext(halves, words)
    magnitude = builder.shl(builder.and_(bits, constant(0x7FFF)), constant(13))
    scale = ir.Constant(floats, [2.0**112] * lanes)
    scaled = builder.bitcast(builder.fmul(builder.bitcast(magnitude, floats), scale), words)
    sign = builder.shl(builder.and_(bits, constant(0x8000)), constant(16))
    return builder.bitcast(builder.or_(scaled, sign), floats)


_tile4, _tile8 = (tile_of(NATIVE, bits) for bits in (4, 8))
_RECORD4 = record_size(4)


@njit(cache=True, nogil=True, error_model="numpy")
def block_of_outputs(packed, num_rows, record, b_operand, out):
    """16 outputs of every row. record: bytes of one; packed: address; others as in `tile_of`."""
    target, stride = out
    height = tile_height(num_rows, MAX_TILE)
    for row in range(0, num_rows, height):
        tile = packed + row * b_operand[1] * ROW_SIZE
        part = (target + 4 * row * stride, stride)
        if record == _RECORD4:
            _tile4(min(num_rows - row, height), tile, b_operand, part)
        else:
            _tile8(min(num_rows - row, height), tile, b_operand, part)
