"""Products of unsigned levels of weights and signed levels of a row, by the instructions of a CPU.

    dot      4 products added to an int32, one instruction of VNNI
    pairs    2 products added in an int16, one instruction of AVX2 or AVX-512
    plain    the same sums as `pairs` in portable operations

Pairs are summed over a group in int16: 16 products of at most 15 * 127 stay in it. Levels of 8 bits
are therefore multiplied half by half there. All sums are exact, so all three are equal.
"""

from typing import NamedTuple

from llvmlite import ir

from canopy_kernels.cpu.simd_ir import (
    INT8,
    INT32,
    add_pairs,
    broadcast,
    has_feature,
    has_wide_registers,
)
from canopy_kernels.int4.layout import GROUP
from canopy_kernels.int8.layout import BLOCK, QUAD

_INT16 = ir.IntType(16)
_LOWER = 0x0F


class Instructions(NamedTuple):
    """What a kernel is made of."""

    kind: str  # dot | pairs | plain
    lanes: int  # outputs whose sums fill a register

    @property
    def most_rows(self) -> int:
        """Rows of the largest tile, whose sums stay in the registers."""
        return 12 if self.lanes == BLOCK else 5


def native() -> Instructions:
    """Those of the CPU that code is compiled for."""
    lanes = BLOCK if has_wide_registers() else BLOCK // 2
    if has_feature("avx512vnni" if has_wide_registers() else "avxvnni"):
        return Instructions("dot", lanes)
    return Instructions("pairs" if has_feature("avx2") else "plain", lanes)


def weight_parts(builder, instructions, line, bits, number):
    """What a line of weights holds: (quad, levels, part); the value of a level is level << 4 part.

    line: bytes of the outputs of a register. number: of the line within its record.
    """
    if bits == 8 and instructions.kind == "dot":
        return [(number, line, 0)]
    lower = builder.and_(line, _bytes(line.type.count, _LOWER))
    upper = builder.lshr(line, _bytes(line.type.count, 4))
    if bits == 8:
        return [(number, lower, 0), (number, upper, 1)]
    return [(2 * number, lower, 0), (2 * number + 1, upper, 0)]


def num_parts(instructions: Instructions, bits: int) -> int:
    """Sums of a row that `weight_parts` keeps apart."""
    return 2 if bits == 8 and instructions.kind != "dot" else 1


def no_sums(instructions: Instructions) -> ir.Constant:
    """Sums to start from."""
    lanes = instructions.lanes
    if instructions.kind == "dot":
        return ir.Constant(ir.VectorType(INT32, lanes), None)
    return ir.Constant(ir.VectorType(_INT16, 2 * lanes), None)


def add_quad(builder, instructions, sums, weights, four):
    """Add the products of one quad. four: its levels of a row, as an int32."""
    rows = builder.bitcast(broadcast(builder, four, instructions.lanes), weights.type)
    if instructions.kind == "dot":
        name = f"llvm.x86.avx512.vpdpbusd.{32 * instructions.lanes}"
        return _call(builder, name, sums.type, sums, weights, rows)
    if instructions.kind == "pairs":
        wide = instructions.lanes == BLOCK
        name = "llvm.x86.avx512.pmaddubs.w.512" if wide else "llvm.x86.avx2.pmadd.ub.sw"
        return builder.add(sums, _call(builder, name, sums.type, weights, rows))
    words = ir.VectorType(_INT16, QUAD * instructions.lanes)
    products = builder.mul(builder.zext(weights, words), builder.sext(rows, words))
    return builder.add(sums, add_pairs(builder, products))


def total(builder, instructions, parts):
    """int32 sums of a group, from the sums of its parts."""
    if instructions.kind == "dot":
        return parts[0]
    wide = ir.VectorType(INT32, 2 * instructions.lanes)
    totals = [add_pairs(builder, builder.sext(part, wide)) for part in parts]
    if len(totals) == 1:
        return totals[0]
    four = ir.Constant(totals[1].type, [4] * instructions.lanes)
    return builder.add(totals[0], builder.shl(totals[1], four))


def num_lines(bits: int) -> int:
    """Lines of levels in a record."""
    return GROUP * bits // 8 // QUAD


def _bytes(count: int, value: int) -> ir.Constant:
    return ir.Constant(ir.VectorType(INT8, count), [value] * count)


def _call(builder, name, result, *arguments):
    kind = ir.FunctionType(result, [argument.type for argument in arguments])
    module = builder.module
    function = module.globals.get(name) or ir.Function(module, kind, name)
    return builder.call(function, arguments)
