"""Sums of floats in one order for all time: sixteen lanes, each by rising index, then the lanes.

    total(a)  = sum over i of a[i]              dot(a, b) = sum over i of a[i] * b[i]

A compiler that may reorder a sum chooses anew wherever the loop is compiled into another function,
so that a restart could change the last bit. Here the order is written down.
"""

import functools

import numpy as np
from llvmlite import ir
from numba import njit, types
from numba.core import cgutils
from numba.extending import intrinsic

from canopy_kernels.vector_ir import FLOAT, FLOATS, INT32, INT64, LANES, load, place


@njit(inline="always")
def total(a):  # type: ignore[no-untyped-def]
    """a: float32 [n], contiguous."""
    return _total(a.ctypes.data, np.int64(len(a)))


@njit(inline="always")
def dot(a, b):  # type: ignore[no-untyped-def]
    """a, b: float32 [n], contiguous."""
    return _dot(a.ctypes.data, b.ctypes.data, np.int64(len(a)))


@intrinsic
def _total(context, a, count):  # type: ignore[no-untyped-def]
    def codegen(context, builder, signature, arguments):  # type: ignore[no-untyped-def]
        return _emit_sum(builder, arguments[:1], arguments[1])

    return types.float32(a, count), codegen


@intrinsic
def _dot(context, a, b, count):  # type: ignore[no-untyped-def]
    def codegen(context, builder, signature, arguments):  # type: ignore[no-untyped-def]
        return _emit_sum(builder, arguments[:2], arguments[2])

    return types.float32(a, b, count), codegen


def _emit_sum(builder, factors, count):  # type: ignore[no-untyped-def]
    """Of the products of what lies at the addresses of factors."""
    lanes = cgutils.alloca_once_value(builder, ir.Constant(FLOATS, None))
    whole = builder.and_(count, INT64(-LANES))
    with cgutils.for_range_slice(builder, INT64(0), whole, INT64(LANES), INT64) as (index, _):
        added = builder.fadd(builder.load(lanes), _product(builder, factors, index, FLOATS))
        builder.store(added, lanes)
    result = cgutils.alloca_once(builder, FLOAT)
    sums = [builder.extract_element(builder.load(lanes), INT32(lane)) for lane in range(LANES)]
    builder.store(functools.reduce(builder.fadd, sums), result)
    with cgutils.for_range_slice(builder, whole, count, INT64(1), INT64) as (index, _):
        added = builder.fadd(builder.load(result), _product(builder, factors, index, FLOAT))
        builder.store(added, result)
    return builder.load(result)


def _product(builder, factors, index, kind):  # type: ignore[no-untyped-def]
    loaded = [load(builder, place(builder, factor, 4, index), kind) for factor in factors]
    return functools.reduce(builder.fmul, loaded)
