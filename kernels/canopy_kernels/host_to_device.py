"""Arrays made on the host, sent to a device all in one copy, and the one way back.

They lie one after the other in one buffer of bytes, each at a multiple of 16, which is what the
compiled kernels expect of their pointers. For CUDA the host's buffer is page-locked, so that the
copy waits for nothing; torch keeps the buffer until it is done.
"""

import math
from collections.abc import Hashable, Iterable, Mapping
from itertools import pairwise
from typing import TypeVar

import numpy as np
import torch

ALIGNMENT = 16  # bytes

Name = TypeVar("Name", bound=Hashable)


def copy_packed(arrays: Mapping[Name, np.ndarray], device: str) -> dict[Name, torch.Tensor]:
    """The same arrays on a device, views of one buffer there."""
    buffer = packed(arrays.values(), device).to(device, non_blocking=True)
    return dict(zip(arrays, views(buffer, arrays.values()), strict=True))


def read_back(tensor: torch.Tensor) -> np.ndarray:
    """The values of a tensor; waits until the device has computed them."""
    return tensor.cpu().numpy()


def packed(arrays: Iterable[np.ndarray], device: str) -> torch.Tensor:
    """uint8 [size] on the host: the arrays, ready to be copied to a device."""
    arrays = list(arrays)
    is_pinned = torch.device(device).type == "cuda"
    buffer = torch.zeros(_offsets(arrays)[-1], dtype=torch.uint8, pin_memory=is_pinned)
    for view, array in zip(views(buffer, arrays), arrays, strict=True):
        view.numpy()[...] = array
    return buffer


def views(buffer: torch.Tensor, like: Iterable[np.ndarray]) -> list[torch.Tensor]:
    """The parts of a buffer that `packed` filled with arrays of these dtypes and shapes."""
    like = list(like)
    return [
        buffer[start : start + array.nbytes].view(_torch_dtype(array)).view(array.shape)
        for array, (start, _) in zip(like, pairwise(_offsets(like)), strict=True)
    ]


def _offsets(arrays: list[np.ndarray]) -> list[int]:
    """Where each array starts, and the size of all."""
    offsets = [0]
    for array in arrays:
        offsets.append(math.ceil((offsets[-1] + array.nbytes) / ALIGNMENT) * ALIGNMENT)
    return offsets


def _torch_dtype(array: np.ndarray) -> torch.dtype:
    return torch.from_numpy(np.empty(0, array.dtype)).dtype
