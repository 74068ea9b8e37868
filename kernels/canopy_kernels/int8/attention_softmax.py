"""The softmax of a path's scores as integer weights for the values of its slots.

    u[j]      = 2^(score[j] - largest score) * value_scales[j]        j along the path
    level[j]  = round(u[j] * factor)
    factor    = as large as 15 bits of a level and 31 bits of a sum of levels * 127 allow
    scale     = 1 / (factor * sum over j of 2^(score[j] - largest score))

so that scale * sum over j of level[j] * v[j] is the mean of the values v[j] * value_scales[j]. Sums
run along the path in the order of canopy_kernels.cpu.deterministic_sums.

The context is the path's beginning and lies in order; what a row's path adds to it stands at
scattered lanes behind it.
"""

import numpy as np
from numba import njit

from canopy_kernels.cpu.deterministic_sums import total
from canopy_kernels.cpu.exp2 import exp2

_LARGEST_LEVEL = np.float32(32767.0)
_LARGEST_SUM = np.float32(16e6)  # of levels, by 127 still less than 2^31 with all rounded up
_LARGEST_FINITE = np.int32(0x7F7FFFFF)


@njit(cache=True, nogil=True, error_model="numpy")
def softmax_weights(scores, value_scales, path, scratch, levels):
    """Turn the scores of one query head into levels; returns their scale.

    scores: float32 by lane. value_scales: of `scales_along`. path: of `path_of`. scratch: float32
    [2, lanes]. levels: int16 by lane, zero off the path.
    """
    context_length, lanes = path
    length = context_length + len(lanes)
    softened, u = scratch[0, :length], scratch[1, :length]
    _gather(scores, path, softened)
    factor, scale = _exponentials(softened, value_scales, u)
    _round(u[:context_length], factor, levels)
    for number in range(len(lanes)):
        levels[lanes[number]] = np.int16(np.rint(u[context_length + number] * factor))
    return scale


@njit(cache=True, nogil=True, error_model="numpy")
def scales_along(by_lane, path, room):
    """The value scales of a path in its order; all NaN when one is no finite number.

    by_lane, room: float32 by lane; room is overwritten.
    """
    scales = room[: path[0] + len(path[1])]
    _gather(by_lane, path, scales)
    if _largest_magnitude(scales.view(np.int32)) > _LARGEST_FINITE:
        scales[:] = np.float32(np.nan)
    return scales


@njit(inline="always")
def path_of(context_length, row, start, parents, lanes, room):
    """A row's path: length of the context, lanes of the rows of the step that follow it.

    lanes: of all rows of the sequence, which begins at row start. room: int64, overwritten.
    """
    depth, ancestor = 0, row
    while ancestor >= 0:
        ancestor = parents[ancestor]
        depth += 1
    for number in range(depth - 1, -1, -1):
        room[number] = lanes[row - start]
        row = parents[row]
    return context_length, room[:depth]


@njit(cache=True, nogil=True, error_model="numpy")
def _gather(by_lane, path, out):
    """Bring what lies by lane into the order of the path."""
    context_length, lanes = path
    for lane in range(context_length):
        out[lane] = by_lane[lane]
    for number in range(len(lanes)):
        out[context_length + number] = by_lane[lanes[number]]


@njit(cache=True, nogil=True, error_model="numpy")
def _round(u, factor, levels):
    """There may be more levels than numbers; these become zero."""
    for lane in range(len(u)):
        levels[lane] = np.int16(np.rint(u[lane] * factor))
    for lane in range(len(u), len(levels)):
        levels[lane] = 0


@njit(cache=True, nogil=True, error_model="numpy")
def _exponentials(row, scales, u):
    """Scores become powers, and their products with the scales u; returns the factor and the scale.

    The scale is NaN when a score or a value scale is no finite number. The largest numbers are
    sought among integers in the same order, which vectors can do.
    """
    bits = row.view(np.int32)
    if np.isnan(scales[0]) or _largest_magnitude(bits) > _LARGEST_FINITE:
        u[:] = np.float32(0.0)
        return np.float32(0.0), np.float32(np.nan)
    shift = _in_order(_largest_in_order(bits)).view(np.float32)
    for index in range(len(row)):
        power = exp2(row[index] - shift)
        row[index] = power
        u[index] = power * scales[index]
    largest = _largest_magnitude(u.view(np.int32)).view(np.float32)
    if largest == np.float32(0.0):
        return np.float32(0.0), np.float32(0.0)
    factor = min(_LARGEST_LEVEL / largest, _LARGEST_SUM / total(u))
    return factor, np.float32(1.0) / (total(row) * factor)


@njit(inline="always")
def _largest_in_order(bits):
    largest = _in_order(bits[0])
    for index in range(len(bits)):
        largest = max(largest, _in_order(bits[index]))
    return np.int32(largest)


@njit(inline="always")
def _largest_magnitude(bits):
    largest = np.int32(0)
    for index in range(len(bits)):
        largest = max(largest, np.int32(bits[index] & np.int32(0x7FFFFFFF)))
    return np.int32(largest)


@njit(inline="always")
def _in_order(bits):
    """The bits of a float as an integer that compares like it, and back."""
    return np.int32(bits ^ (np.int32(bits >> np.int32(31)) & np.int32(0x7FFFFFFF)))
