"""Sums in a fixed order, as that order written in NumPy."""

import numpy as np
import pytest
from numba import njit

from canopy_kernels.cpu import deterministic_sums


@njit
def sums(a, b):
    return deterministic_sums.total(a), deterministic_sums.dot(a, b)


def in_order(terms: np.ndarray) -> np.float32:
    in_turn, whole = len(terms) // 64 * 64, len(terms) // 16 * 16
    chains = np.zeros((4, 16), np.float32)
    for start in range(0, in_turn, 64):
        chains = chains + terms[start : start + 64].reshape(4, 16)
    for start in range(in_turn, whole, 16):
        chains[0] += terms[start : start + 16]
    lanes = (chains[0] + chains[1]) + (chains[2] + chains[3])
    while len(lanes) > 1:
        lanes = lanes[: len(lanes) // 2] + lanes[len(lanes) // 2 :]
    return np.float32(sum(terms[whole:], start=lanes[0]))


@pytest.mark.parametrize("length", [1, 15, 16, 17, 64, 175, 575])
def test_the_order_is_the_one_that_is_written_down(length):
    rng = np.random.default_rng(length)
    a, b = rng.normal(size=(2, length)).astype(np.float32) * np.float32(1e3)
    total, dot = sums(a, b)
    assert total == in_order(a)
    assert dot == in_order(a * b)
