"""Levels, scales and minima of the groups of a weight; formulas of canopy_kernels.int4.gemm.

    8 bits    level 128 is zero, scale = max |w| / 127
    4 bits    of several grids over the range of a group the one with the least squared error

Weights that lie on such a grid already, as those of a dequantized GGUF file do (Q8_0; Q4_1, Q4_0),
come out with the levels and the grid that they were made of: nothing is rounded twice.
"""

import numpy as np
from numba import njit

from canopy_kernels.int4.layout import GROUP, num_groups, pack_groups

_MIDDLE, _LEVELS8 = 128, 127
_LEVELS4 = 15
# Steps into which a group's range is cut, tried in this order: more or fewer than there are levels
# give up the ends of the range, or levels. Whole numbers find a grid whose ends are not used.
_NUM_STEPS = np.array(
    [15, 14, 13, 12, 11, 10, 9, 8, 14.8, 14.6, 14.4, 14.2, 15.2, 15.4, 15.6, 15.8, 16, 16.5],
    np.float32,
)


def quantize8(weight: np.ndarray) -> np.ndarray:
    """float32 [N, K] to blocks of 8 bits."""
    groups = _grouped(weight)
    scales = (np.abs(groups).max(axis=2) / np.float32(_LEVELS8)).astype(np.float16)
    steps = scales.astype(np.float32)[..., None]
    q = np.divide(groups, steps, out=np.zeros_like(groups), where=steps > 0)
    levels = (np.clip(np.rint(q), -_MIDDLE, _LEVELS8) + _MIDDLE).astype(np.uint8)
    minima = scales * np.float16(-_MIDDLE)
    return pack_groups(levels.reshape(len(weight), -1), scales, minima, 8)


def quantize4(weight: np.ndarray) -> np.ndarray:
    """float32 [N, K] to blocks of 4 bits."""
    groups = _grouped(weight)
    num_rows, per_row, _ = groups.shape
    levels = np.empty((num_rows * per_row, GROUP), np.uint8)
    grids = np.empty((2, num_rows * per_row), np.float32)
    _search(groups.reshape(-1, GROUP), _NUM_STEPS, levels, grids)
    scales, minima = grids.astype(np.float16).reshape(2, num_rows, per_row)
    return pack_groups(levels.reshape(num_rows, -1), scales, minima, 4)


def _grouped(weight: np.ndarray) -> np.ndarray:
    """[N, G, 32]; inputs that are missing to whole groups are zero."""
    missing = num_groups(weight.shape[1]) * GROUP - weight.shape[1]
    return np.pad(weight, ((0, 0), (0, missing))).reshape(len(weight), -1, GROUP)


@njit(cache=True, nogil=True, error_model="numpy")
def _search(groups, num_steps, levels, grids):
    trial = np.empty(GROUP, np.float32)
    for index in range(len(groups)):
        group = groups[index]
        lowest, highest = group.min(), group.max()
        least = np.float32(np.inf)
        for steps in num_steps:
            scale, minimum = _fitted(group, trial, lowest, (highest - lowest) / steps)
            error = _round_to(group, trial, scale, minimum)
            if error < least:
                least = error
                grids[0, index], grids[1, index] = scale, minimum
                for i in range(GROUP):
                    levels[index, i] = np.uint8(trial[i])
            if least == np.float32(0.0):
                break


@njit(inline="always")
def _fitted(group, trial, lowest, step):
    """The grid with the least squared error for the levels that a first grid gives, as halves."""
    scale, minimum = _half(step), _half(lowest)
    if _round_to(group, trial, scale, minimum) == np.float32(0.0):
        return scale, minimum
    sum_q = sum_qq = sum_w = sum_qw = np.float32(0.0)
    for i in range(GROUP):
        sum_q += trial[i]
        sum_qq += trial[i] * trial[i]
        sum_w += group[i]
        sum_qw += trial[i] * group[i]
    count = np.float32(GROUP)
    spread = count * sum_qq - sum_q * sum_q
    if spread <= np.float32(0.0):
        return scale, minimum
    slope = (count * sum_qw - sum_q * sum_w) / spread
    return _half(slope), _half((sum_w - slope * sum_q) / count)


@njit(inline="always")
def _round_to(group, trial, scale, minimum):
    """Levels of a group on a grid into `trial`; the squared error."""
    factor = np.float32(1.0) / scale if scale != np.float32(0.0) else np.float32(0.0)
    error = np.float32(0.0)
    for i in range(GROUP):
        level = np.rint((group[i] - minimum) * factor)
        trial[i] = min(max(level, np.float32(0.0)), np.float32(_LEVELS4))
        difference = scale * trial[i] + minimum - group[i]
        error += difference * difference
    return error


@njit(inline="always")
def _half(value):
    """Rounded to what a half float holds, ties away from zero."""
    bits = np.float32(value).view(np.int32)
    magnitude = bits & np.int32(0x7FFFFFFF)
    rounded = np.int32((magnitude + np.int32(0x1000)) & np.int32(0x7FFFE000))
    if rounded < np.int32(0x38800000):  # subnormal: steps of 2^-24
        units = np.rint(np.int32(magnitude).view(np.float32) * np.float32(2.0**24))
        rounded = np.float32(units * np.float32(2.0**-24)).view(np.int32)
    return np.int32(rounded | (bits & np.int32(-2147483648))).view(np.float32)
