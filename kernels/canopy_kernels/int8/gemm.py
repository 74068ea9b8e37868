"""Linear layers on exact integers: int8 weights, int16 activations, int32 sums.

    rows[t, k]    ~ q[t, k] * row_scales[t]          |q| <= activation_levels(K)
    weight[n, k]  ~ w[n, k] * weight_scales[n]       |w| <= 127
    sums[t, n]    = sum over k of q[t, k] * w[n, k]
    out[t, n]     = float(sums[t, n]) * row_scales[t] * weight_scales[n] + bias[n]

    q        int16 [T, K']           K' = K rounded up to a multiple of 4
    weight   int8 [N', K]            packed as [N'/16, K'/4, 16, 4]; N' = N rounded up to one of 16
    out      float32 [T, N']

No sum can leave int32, so its value depends on nothing but the row and the weight, in whatever
order and on however many threads it is computed, by matrix tiles or by vectors.
"""

import numpy as np
from numba import njit

from canopy_kernels.cpu import aligned
from canopy_kernels.int8 import gemm_dispatch as tiles
from canopy_kernels.int8.layout import BLOCK, QUAD, pack_weight, pad_outputs, unpack_weight

WEIGHT_LEVELS = 127
_INT32_LIMIT = 2**31 - 1
_INT16_LIMIT = 2**15 - 1
_PREFETCHED = 24576  # bytes of weights between what is read and what is asked for


def activation_levels(num_inputs: int) -> int:
    """The largest |q| with which no sum of so many products leaves int32."""
    return min(_INT16_LIMIT, _INT32_LIMIT // (WEIGHT_LEVELS * num_inputs))


def quantize_weight(weight: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """float32 [N, K] to packed int8 blocks and scales float32 [N'], one per output."""
    largest = np.abs(weight).max(axis=1)
    scales = np.where(largest > 0, largest / WEIGHT_LEVELS, 1).astype(np.float32)
    levels = np.rint(weight / scales[:, None]).astype(np.int8)
    return pack_weight(levels), pad_outputs(scales)


def int8_linear_reference(
    q: np.ndarray,
    row_scales: np.ndarray,
    blocks: np.ndarray,
    weight_scales: np.ndarray,
    bias: np.ndarray,
) -> np.ndarray:
    """The formula of the module docstring in NumPy; float32 [T, N']."""
    sums = q.astype(np.int64) @ unpack_weight(blocks).astype(np.int64).T
    return sums.astype(np.float32) * row_scales[:, None] * weight_scales + bias


def int8_linear(
    q: np.ndarray,
    row_scales: np.ndarray,
    blocks: np.ndarray,
    weight_scales: np.ndarray,
    bias: np.ndarray,
) -> np.ndarray:
    """`int8_linear_reference`, to the bit, on one thread."""
    out = np.empty((len(q), len(weight_scales)), np.float32)
    linear_partition(packed_rows(q), row_scales, (blocks, weight_scales, bias), out, 0, 1)
    return out


def packed_rows(q: np.ndarray) -> np.ndarray:
    """Rows int16 [T, K'] for `linear_partition`."""
    packed = aligned.empty(int(tiles.packed_size(*q.shape)), np.uint8)
    _pack_rows(q, packed)
    return packed


@njit(cache=True)
def _pack_rows(q, packed):
    num_rows, num_inputs = q.shape
    depth = tiles.piece_depth(num_inputs, num_rows)
    for row in range(num_rows):
        tiles.pack_row(q[row], depth, packed, row, num_rows)


@njit(cache=True, nogil=True, error_model="numpy")
def linear_partition(packed, row_scales, linear, out, worker, num_workers):
    """Worker's part of the outputs, for all rows.

    packed: as many rows as there are scales, as in `packed_rows`.
    linear: blocks, weight scales, bias.
    """
    if len(row_scales) == 0:
        return
    blocks, weight_scales, bias = linear
    num_blocks, num_quads = blocks.shape[0], blocks.shape[1]
    depth = tiles.piece_depth(QUAD * num_quads, len(row_scales))
    distances = piece_distances(QUAD * num_quads, depth)
    a_operand = packed.ctypes.data, len(row_scales), row_scales.ctypes.data
    first, last = num_blocks * worker // num_workers, num_blocks * (worker + 1) // num_workers
    tiles.begin(len(row_scales), depth)
    for block in range(first, last):
        column = 4 * BLOCK * block
        b_operand = (
            blocks.ctypes.data + block * num_quads * BLOCK * QUAD,
            distances.ctypes.data,
            len(distances),
            depth,
            weight_scales.ctypes.data + column,
            bias.ctypes.data + column,
            _PREFETCHED,
        )
        tiles.block_of_outputs(a_operand, b_operand, (out.ctypes.data + column, out.shape[1]))
    tiles.end(len(row_scales))


@njit(inline="always")
def piece_distances(num_inputs, depth):
    """Of the pieces of one block: int64, bytes. The last piece ends with the block."""
    distances = np.empty(-(-num_inputs // depth), np.int64)
    for piece in range(len(distances)):
        distances[piece] = BLOCK * min(piece * depth, num_inputs - depth)
    return distances
