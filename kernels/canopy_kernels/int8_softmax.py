"""The softmax of a path's scores as integer weights for the values of its slots.

    u[j]      = 2^(score[j] - largest score) * value_scales[j]        j along the path
    level[j]  = round(u[j] * factor)
    factor    = as large as 15 bits of a level and 31 bits of a sum of levels * 127 allow
    scale     = 1 / (factor * sum over j of 2^(score[j] - largest score))

so that scale * sum over j of level[j] * v[j] is the mean of the values v[j] * value_scales[j]. Sums
run along the path in the order of canopy_kernels.fixed_sums.
"""

import numpy as np
from numba import njit

from canopy_kernels.exponential import exp2
from canopy_kernels.fixed_sums import total

_LARGEST_LEVEL = np.float32(32767.0)
_LARGEST_SUM = np.float32(16e6)  # of levels, by 127 still less than 2^31 with all rounded up


@njit(cache=True, nogil=True, error_model="numpy")
def weigh(scratch, index, path, parents, levels):  # type: ignore[no-untyped-def]
    """Turn the scores of one query head into levels; returns their scale.

    scratch: of canopy_kernels.int8_attention, scores and value scales by lane; its scores are
    overwritten. path: length of the context, row, first row of the sequence. levels: int16, by
    lane, zero off the path.
    """
    context_length, row, start = path
    depth = _depth(row, parents)
    weights = scratch.path[: context_length + depth]
    scales = scratch.scores[index, : context_length + depth]
    _gather(scratch.scores[index], scratch.lanes, path, parents, weights)
    _gather(scratch.value_scales, scratch.lanes, path, parents, scales)
    factor, scale = _soften(weights, scales)
    _round(weights[:context_length], factor, levels)
    for number in range(len(weights) - 1, context_length - 1, -1):
        levels[scratch.lanes[row - start]] = np.int16(np.rint(weights[number] * factor))
        row = parents[row]
    return scale


@njit(cache=True, nogil=True, error_model="numpy")
def _round(weights, factor, levels):  # type: ignore[no-untyped-def]
    """There may be more levels than weights; these become zero."""
    for lane in range(len(weights)):
        levels[lane] = np.int16(np.rint(weights[lane] * factor))
    for lane in range(len(weights), len(levels)):
        levels[lane] = 0


@njit(inline="always")
def _depth(row, parents):  # type: ignore[no-untyped-def]
    """Rows of the step on the path of one of them, itself included."""
    depth = 0
    while row >= 0:
        row = parents[row]
        depth += 1
    return depth


@njit(inline="always")
def _gather(by_lane, lanes, path, parents, out):  # type: ignore[no-untyped-def]
    """Bring what lies by lane into the order of the path."""
    context_length, row, start = path
    for lane in range(context_length):
        out[lane] = by_lane[lane]
    for number in range(len(out) - 1, context_length - 1, -1):
        out[number] = by_lane[lanes[row - start]]
        row = parents[row]


@njit(cache=True, nogil=True, error_model="numpy")
def _soften(row, scales):  # type: ignore[no-untyped-def]
    """Scores become u, in place; returns the factor and the scale, NaN if one of them is.

    The largest numbers are sought among integers in the same order, which vectors can do.
    """
    bits = row.view(np.int32)
    if np.isnan(total(row) + total(scales)):
        return np.float32(0.0), np.float32(np.nan)
    highest = _in_order(_largest_in_order(bits)).view(np.float32)
    for index in range(len(row)):
        row[index] = exp2(row[index] - highest)
    softened = total(row)
    for index in range(len(row)):
        row[index] *= scales[index]
    largest = _in_order(_largest_in_order(bits)).view(np.float32)
    if largest == np.float32(0.0):
        return np.float32(0.0), np.float32(0.0)
    factor = min(_LARGEST_LEVEL / largest, _LARGEST_SUM / total(row))
    return factor, np.float32(1.0) / (softened * factor)


@njit(inline="always")
def _largest_in_order(bits):  # type: ignore[no-untyped-def]
    largest = _in_order(bits[0])
    for index in range(len(bits)):
        largest = max(largest, _in_order(bits[index]))
    return np.int32(largest)


@njit(inline="always")
def _in_order(bits):  # type: ignore[no-untyped-def]
    """The bits of a float as an integer that compares like it, and back."""
    return np.int32(bits ^ (np.int32(bits >> np.int32(31)) & np.int32(0x7FFFFFFF)))
