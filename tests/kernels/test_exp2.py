"""The power and the reciprocal of the int8 kernels against NumPy's."""

import numpy as np
from numba import njit

from canopy_kernels.cpu.exp2 import exp2, reciprocal


@njit
def powers(x, out):
    for i in range(len(x)):
        out[i] = exp2(x[i])


@njit
def reciprocals(x, out):
    for i in range(len(x)):
        out[i] = reciprocal(x[i])


def test_powers_are_off_by_less_than_two_in_ten_million():
    x = np.concatenate((-np.linspace(0, 125.9, 100_003), [-126.0, -200.0, -np.inf]))
    x = x.astype(np.float32)
    out = np.empty_like(x)
    powers(x, out)
    expected = np.exp2(np.maximum(x.astype(np.float64), -126.0))
    assert np.abs(out / expected - 1.0).max() < 2e-7
    assert out[0] == 1.0


def test_reciprocals_are_off_by_one_unit_in_the_last_place_at_most():
    x = np.linspace(1.0, 2.0, 100_003).astype(np.float32)
    out = np.empty_like(x)
    reciprocals(x, out)
    assert np.abs(out.view(np.int32) - (np.float32(1.0) / x).view(np.int32)).max() <= 1
    assert (out[0], out[-1]) == (1.0, 0.5)
