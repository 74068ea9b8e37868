"""A power of two that the compiler can vectorise, unlike that of the C library."""

import numpy as np
from numba import njit


@njit(inline="always")
def exp2(x):  # type: ignore[no-untyped-def]
    """2^x for float32 x <= 0, by the polynomial of Cephes' exp2f; 2^-126 at least."""
    x = max(x, np.float32(-126.0))
    nearest = np.int32(x - np.float32(0.5))
    f = x - np.float32(nearest)
    p = np.float32(1.535336188319500e-4)
    p = p * f + np.float32(1.339887440266574e-3)
    p = p * f + np.float32(9.618437357674640e-3)
    p = p * f + np.float32(5.550332471162809e-2)
    p = p * f + np.float32(2.402264791363012e-1)
    p = p * f + np.float32(6.931472028550421e-1)
    p = p * f + np.float32(1.0)
    return p * np.int32(np.int32(nearest + np.int32(127)) << 23).view(np.float32)
