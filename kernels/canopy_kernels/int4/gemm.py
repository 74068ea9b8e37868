"""Linear layers on grouped weights of 4 or 8 bits; layouts of canopy_kernels.int4.layout.

    rows[t, k]    ~ q[t, k] * row_scales[t, g]                             |q| <= 127
    weight[n, k]  ~ scales[n, g] * levels[n, k] + minima[n, g]             0 <= levels < 2^bits
    dots[t, n, g] = sum over the group's k of q[t, k] * levels[n, k]       exact
    out[t, n]     = bias[n] + sum over g of (dots * row_scales) * scales + row_sums * minima

    row_sums[t, g] = row_scales[t, g] * (sum over the group's k of q[t, k])

The sum over g runs in ascending order in float32, on every CPU and for every number of rows, so a
row's outputs are the same to the bit in any batch and on any number of threads.
"""

import numpy as np
from numba import njit

from canopy_kernels.cpu import aligned
from canopy_kernels.int4.gemm_simd import MAX_TILE, block_of_outputs
from canopy_kernels.int4.layout import (
    GROUP,
    ROW_LEVELS,
    ROW_SIZE,
    num_groups,
    put_row_groups,
    unpack_groups,
)
from canopy_kernels.int8.layout import BLOCK

# Bytes of weights between what is read and what is prefetched. With 16384 instead a step of one row
# took 1.08 to 1.20 times as long, one of sixteen 0.96 to 0.98 times (AVX-512, `bench step`).
_PREFETCHED = 2048


def quantize_rows(rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """float32 [T, K] to levels int8 [T, G, 32] and their scales float32 [T, G]."""
    groups = num_groups(rows.shape[1])
    padded = np.pad(rows, ((0, 0), (0, groups * GROUP - rows.shape[1])))
    by_group = padded.reshape(len(rows), groups, GROUP)
    scales = np.abs(by_group).max(axis=2) / np.float32(ROW_LEVELS)
    factors = np.divide(np.float32(1), scales, out=np.zeros_like(scales), where=scales > 0)
    return np.rint(by_group * factors[..., None]).astype(np.int8), scales


def grouped_linear_reference(rows: np.ndarray, blocks: np.ndarray, bias: np.ndarray) -> np.ndarray:
    """The formulas of the module docstring in NumPy. rows: float32 [T, K]; float32 [T, N']."""
    q, row_scales = quantize_rows(rows)
    levels, scales, minima = unpack_groups(blocks)
    by_group = levels.reshape(len(levels), -1, GROUP).astype(np.int64)
    row_sums = row_scales * q.sum(axis=2, dtype=np.int64).astype(np.float32)
    out = np.repeat(bias[None], len(rows), axis=0)
    for group in range(q.shape[1]):
        dots = (q[:, group].astype(np.int64) @ by_group[:, group].T).astype(np.float32)
        scaled = dots * row_scales[:, group, None] * scales[:, group].astype(np.float32)
        out += scaled + row_sums[:, group, None] * minima[:, group].astype(np.float32)
    return out


def grouped_linear(rows: np.ndarray, blocks: np.ndarray, bias: np.ndarray) -> np.ndarray:
    """`grouped_linear_reference`, to the bit, on one thread."""
    out = np.empty((len(rows), len(bias)), np.float32)
    grouped_partition(packed_groups(rows), (blocks, bias), out, 0, 1)
    return out


def packed_size(num_rows: int, num_inputs: int) -> int:
    """Bytes of so many packed rows."""
    return num_rows * num_groups(num_inputs) * ROW_SIZE


def packed_groups(rows: np.ndarray) -> np.ndarray:
    """Rows float32 [T, K] for `grouped_partition`."""
    packed = aligned.empty(packed_size(*rows.shape), np.uint8)
    for row, values in enumerate(rows):
        pack_row(values, packed, row, len(rows))
    return packed


@njit(cache=True, nogil=True, error_model="numpy")
def pack_row(values, packed, row, num_rows):
    """Quantize one of num_rows rows. values: float32 [K]."""
    put_row_groups(values, packed, row, num_rows, MAX_TILE)


@njit(cache=True, nogil=True, error_model="numpy")
def grouped_partition(packed, linear, out, worker, num_workers):
    """Worker's part of the outputs, for all rows. linear: blocks, bias."""
    if len(out) == 0:
        return
    blocks, bias = linear
    num_blocks, groups, record = blocks.shape
    first, last = num_blocks * worker // num_workers, num_blocks * (worker + 1) // num_workers
    for block in range(first, last):
        column = 4 * BLOCK * block
        b_operand = (
            blocks.ctypes.data + block * groups * record,
            groups,
            bias.ctypes.data + column,
            _PREFETCHED,
        )
        target = out.ctypes.data + column, out.shape[1]
        block_of_outputs(packed.ctypes.data, len(out), record, b_operand, target)
