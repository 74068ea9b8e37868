"""Sums of floats in one order for all time.

    total(a)  = sum over i of a[i]              dot(a, b) = sum over i of a[i] * b[i]

Four vectors of sixteen lanes take 64 terms in turn, the first also what is left in sixteens; vector
0 + 1 and 2 + 3 are added, then their sums, then one half of the lanes to the other until one is
left, then what is left of the terms by rising index.

A compiler that may reorder a sum chooses anew wherever the loop is compiled into another function,
so that a restart could change the last bit. Here the order is written down.
"""

import functools

import numpy as np
from llvmlite import ir
from numba import njit, types
from numba.core import cgutils
from numba.extending import intrinsic

from canopy_kernels.cpu.simd_ir import (
    FLOAT,
    FLOATS,
    INT32,
    INT64,
    LANES,
    element_address,
    halves,
    load,
)

_CHAINS = 4


@njit(inline="always")
def total(a):
    """a: float32 [n], contiguous."""
    return _total(a.ctypes.data, np.int64(len(a)))


@njit(inline="always")
def dot(a, b):
    """a, b: float32 [n], contiguous."""
    return dot_at(a.ctypes.data, b.ctypes.data, np.int64(len(a)))


@intrinsic
def _total(context, a, count):
    def codegen(context, builder, signature, arguments):
        return _emit_sum(builder, arguments[:1], arguments[1])

    return types.float32(a, count), codegen


@intrinsic
def dot_at(context, a, b, count):
    """`dot` of float32 [count] at two addresses."""

    def codegen(context, builder, signature, arguments):
        return _emit_sum(builder, arguments[:2], arguments[2])

    return types.float32(a, b, count), codegen


def _emit_sum(builder, factors, count):
    """Of the products of what lies at the addresses of factors."""
    chains = [cgutils.alloca_once_value(builder, ir.Constant(FLOATS, None)) for _ in range(_CHAINS)]
    in_turn = builder.and_(count, INT64(-LANES * _CHAINS))
    whole = builder.and_(count, INT64(-LANES))

    def add(chain, index):
        product = _product(builder, factors, index, FLOATS)
        builder.store(builder.fadd(builder.load(chain), product), chain)

    step = INT64(LANES * _CHAINS)
    with cgutils.for_range_slice(builder, INT64(0), in_turn, step, INT64) as (index, _):
        for number, chain in enumerate(chains):
            add(chain, builder.add(index, INT64(number * LANES)))
    with cgutils.for_range_slice(builder, in_turn, whole, INT64(LANES), INT64) as (index, _):
        add(chains[0], index)
    result = cgutils.alloca_once_value(builder, _fold(builder, map(builder.load, chains)))
    with cgutils.for_range_slice(builder, whole, count, INT64(1), INT64) as (index, _):
        added = builder.fadd(builder.load(result), _product(builder, factors, index, FLOAT))
        builder.store(added, result)
    return builder.load(result)


def _fold(builder, vectors):
    """The sum of all lanes of all vectors, two and two."""
    vectors = list(vectors)
    while len(vectors) > 1:
        pairs = zip(vectors[::2], vectors[1::2], strict=True)
        vectors = [builder.fadd(*pair) for pair in pairs]
    lanes = vectors[0]
    while lanes.type.count > 1:
        lanes = builder.fadd(*halves(builder, lanes))
    return builder.extract_element(lanes, INT32(0))


def _product(builder, factors, index, kind):
    loaded = [load(builder, element_address(builder, factor, 4, index), kind) for factor in factors]
    return functools.reduce(builder.fmul, loaded)
