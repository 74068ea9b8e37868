"""What happens to one row between the integer linears of a decoder, each op one pass or two.

    quantize      q = round(x / scale), scale = max |x| / levels
    rms_norm      x / sqrt(mean(x^2) + eps) * weight
    rope          (a, b) -> (a cos - b sin, b cos + a sin), halves a and b of a head
    gated         silu(gate) * up, silu(x) = x / (1 + e^-x)

Sums run in the order of cpu.deterministic_sums, which depends on the length of the row alone, so
a row's result is the same to the bit wherever the row stands. Arithmetic is float32.
"""

import numpy as np
from numba import njit

from canopy_kernels.cpu.deterministic_sums import dot
from canopy_kernels.cpu.exp2 import LOG2_E, exp2, reciprocal


@njit(cache=True, nogil=True, error_model="numpy")
def quantize(x, levels, q):
    """Write the int16 levels of x into q; returns the scale. The scale of NaN is NaN."""
    scale = largest_magnitude(x.view(np.int32)).view(np.float32) / np.float32(levels)
    factor = np.float32(1.0) / scale if scale > np.float32(0.0) else np.float32(0.0)
    for i in range(len(x)):
        q[i] = np.int16(np.rint(x[i] * factor))
    return scale


@njit(inline="always")
def largest_magnitude(bits):
    """Magnitudes of floats compare like the integers that their bits are."""
    largest = np.int32(0)
    for i in range(len(bits)):
        largest = max(largest, np.int32(bits[i] & np.int32(0x7FFFFFFF)))
    return np.int32(largest)


@njit(cache=True, nogil=True, error_model="numpy")
def rms_norm(x, weight, eps, out):
    """x and out may be one array."""
    factor = np.float32(1.0) / np.sqrt(dot(x, x) / np.float32(len(x)) + eps)
    for i in range(len(x)):
        out[i] = x[i] * factor * weight[i]


@njit(cache=True, nogil=True, error_model="numpy")
def add(x, addend):
    """x += addend."""
    for i in range(len(x)):
        x[i] += addend[i]


@njit(cache=True, nogil=True, error_model="numpy")
def rope(x, cosines, sines, out):
    """Rotate one head. cosines, sines: [D] as in `canopy.models.llama.layers.RopeTable`."""
    half = len(x) // 2
    for i in range(half):
        out[i] = x[i] * cosines[i] + x[half + i] * sines[i]
        out[half + i] = x[half + i] * cosines[half + i] + x[i] * sines[half + i]


@njit(cache=True, nogil=True, error_model="numpy")
def gated(gate, up, out):
    """silu(gate) * up."""
    for i in range(len(out)):
        power = exp2(-abs(gate[i]) * LOG2_E)
        numerator = gate[i] if gate[i] > np.float32(0.0) else gate[i] * power
        out[i] = numerator * reciprocal(np.float32(1.0) + power) * up[i]
