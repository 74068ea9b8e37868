"""A power of two and a reciprocal that the compiler can vectorise.

Unlike the C library's power and the CPU's division, whose vectors take as long as ten other
operations. Products are added without rounding between, which a compiler may not decide by itself.
"""

import numpy as np
from numba import njit, types
from numba.extending import intrinsic

LOG2_E = np.float32(1.4426950408889634)


@njit(inline="always")
def exp2(x):
    """2^x for float32 x <= 0, by the polynomial of Cephes' exp2f; 2^-126 at least."""
    x = max(x, np.float32(-126.0))
    nearest = np.int32(x - np.float32(0.5))
    f = x - np.float32(nearest)
    p = np.float32(1.535336188319500e-4)
    p = fma(p, f, np.float32(1.339887440266574e-3))
    p = fma(p, f, np.float32(9.618437357674640e-3))
    p = fma(p, f, np.float32(5.550332471162809e-2))
    p = fma(p, f, np.float32(2.402264791363012e-1))
    p = fma(p, f, np.float32(6.931472028550421e-1))
    p = fma(p, f, np.float32(1.0))
    return p * np.int32(np.int32(nearest + np.int32(127)) << 23).view(np.float32)


@njit(inline="always")
def reciprocal(x):
    """1 / x for float32 x in [1, 2], off by at most one unit in the last place.

    Newton's iteration from the straight line that is off by at most 1/17 there.
    """
    y = fma(np.float32(-8.0 / 17.0), x, np.float32(24.0 / 17.0))
    y = fma(fma(-x, y, np.float32(1.0)), y, y)
    y = fma(fma(-x, y, np.float32(1.0)), y, y)
    return fma(fma(-x, y, np.float32(1.0)), y, y)


@intrinsic
def fma(context, a, b, c):
    """a * b + c, rounded once; float32."""

    def codegen(context, builder, signature, arguments):
        return builder.fma(*arguments)

    return types.float32(types.float32, types.float32, types.float32), codegen
