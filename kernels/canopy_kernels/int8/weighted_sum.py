"""Rows of floats, weighted and added up; the sums stay in vector registers.

out[i] = sum over n of shares[n] * rows[n, i]        by rising n; the CPU may not round products
"""

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from canopy_kernels.cpu.simd_ir import (
    FLOAT,
    FLOATS,
    INT64,
    LANES,
    broadcast,
    element_address,
    load,
    store,
)

_TOGETHER = 4  # vectors of a row; one sum alone would wait for itself


@intrinsic
def weighted_sum(context, out, shares, rows, stride, num, size):
    """Addresses of float32 [size], [num] and of rows of `size`, `stride` bytes apart."""

    def codegen(context, builder, signature, arguments):
        _emit(builder, *arguments)
        return context.get_dummy_value()

    return types.void(out, shares, rows, stride, num, size), codegen


def _emit(builder, out, shares, rows, stride, num, size):
    lanes = [(LANES * _TOGETHER, FLOATS, _TOGETHER), (LANES, FLOATS, 1), (1, FLOAT, 1)]
    first = INT64(0)
    for width, kind, together in lanes:
        end = builder.and_(size, INT64(-width))
        with cgutils.for_range_slice(builder, first, end, INT64(width), INT64) as (column, _):
            _emit_columns(builder, (out, shares, rows, stride, num), column, kind, together)
        first = end


def _emit_columns(builder, arguments, column, kind, together):
    """One stretch of columns, `together` vectors or numbers of it at once."""
    out, shares, rows, stride, num = arguments
    count = LANES if kind is FLOATS else 1
    sums = [cgutils.alloca_once_value(builder, ir.Constant(kind, None)) for _ in range(together)]
    for each in sums:  # an alloca is set once, a stretch begins anew
        builder.store(ir.Constant(kind, None) if kind is FLOATS else FLOAT(0.0), each)
    with cgutils.for_range(builder, num, intp=INT64) as loop:
        partition = load(builder, element_address(builder, shares, 4, loop.index), FLOAT)
        partition = broadcast(builder, partition) if kind is FLOATS else partition
        row = builder.add(rows, builder.mul(stride, loop.index))
        for number, each in enumerate(sums):
            at = element_address(builder, row, 4, builder.add(column, INT64(number * count)))
            product = builder.fmul(partition, load(builder, at, kind), flags=["contract"])
            builder.store(builder.fadd(builder.load(each), product, flags=["contract"]), each)
    for number, each in enumerate(sums):
        at = element_address(builder, out, 4, builder.add(column, INT64(number * count)))
        store(builder, builder.load(each), at)
