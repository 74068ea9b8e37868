"""Arrays that begin with a line of the CPU's cache.

A vector or a row of a matrix tile that lies across two lines is read at half the speed. Arrays of
4 MB and more lie on huge pages, which NumPy asks for where memory is not wanted zeroed; through
small pages a stream of weights comes at half the speed.
"""

import math
from typing import Any

import numpy as np

LINE = 64  # bytes


def empty(shape: int | tuple[int, ...], dtype: Any) -> np.ndarray:
    """An array of arbitrary contents."""
    shape = (shape,) if isinstance(shape, int) else shape
    room = np.empty(math.prod(shape) * np.dtype(dtype).itemsize + LINE, np.uint8)
    first = -room.ctypes.data % LINE
    return room[first : first + len(room) - LINE].view(dtype).reshape(shape)


def whole_lines(num_bytes: int) -> int:
    """Rounded up, so that what comes behind begins with a line too."""
    return num_bytes + -num_bytes % LINE


def zeros(shape: int | tuple[int, ...], dtype: Any) -> np.ndarray:
    """An array of zeros, all of it in memory at once."""
    array = empty(shape, dtype)
    array[...] = 0
    return array


def copy(array: np.ndarray) -> np.ndarray:
    """The same numbers in an array of its own."""
    copied = empty(array.shape, array.dtype)
    copied[...] = array
    return copied
