"""Phases that int8 networks of the Llama family have in common; each computes a worker's share.

Their buffers are those of canopy_kernels.int8.buffers, or others with the same names.
"""

from typing import NamedTuple

import numpy as np
from numba import njit

from canopy_kernels.cpu.threads import partition
from canopy_kernels.int8 import gemm_dispatch as tiles
from canopy_kernels.int8.gemm import linear_partition
from canopy_kernels.int8.layout import QUAD
from canopy_kernels.int8.rows import add, gated, quantize, rms_norm


class Linears(NamedTuple):
    """One linear of each of L layers; layouts of canopy_kernels.int8.gemm."""

    blocks: np.ndarray  # int8 [L, out* / 16, in* / 4, 16, 4]
    scales: np.ndarray  # float32 [L, out*]
    bias: np.ndarray  # float32 [L, out*]


@njit(cache=True, nogil=True, error_model="numpy")
def linear(rows, linears, layer, out, context):  # type: ignore[no-untyped-def]
    """One linear of packed rows. out: float32 [T, out*]."""
    linear = linears.blocks[layer], linears.scales[layer], linears.bias[layer]
    scales = rows.scales[: len(out)]
    linear_partition(rows.packed, scales, linear, out, context.worker, context.num_workers)


@njit(inline="always")
def alloc_scratch(size):  # type: ignore[no-untyped-def]
    """Levels of one row, with zeros where the linears pad."""
    return np.zeros(size + -size % QUAD, np.int16)


@njit(cache=True, nogil=True, error_model="numpy")
def quantize_and_pack_row(values, scratch, rows, row, num_rows):  # type: ignore[no-untyped-def]
    """Quantize one of num_rows rows."""
    rows.scales[row] = quantize(values, rows.levels, scratch)
    depth = tiles.piece_depth(len(scratch), num_rows)
    tiles.pack_row(scratch, depth, rows.packed, row, num_rows)


@njit(cache=True, nogil=True, error_model="numpy")
def norm_rows(hidden, weight, eps, buffers, context):  # type: ignore[no-untyped-def]
    """Add what the last linear made of the rows, then norm and quantize them."""
    size = hidden.shape[1]
    normed, scratch = np.empty(size, np.float32), alloc_scratch(size)
    first, end = partition(context, len(hidden))
    for row in range(first, end):
        add(hidden[row], buffers.change[row, :size])
        rms_norm(hidden[row], weight, eps, normed)
        quantize_and_pack_row(normed, scratch, buffers.hidden, row, len(hidden))


@njit(cache=True, nogil=True, error_model="numpy")
def quantize_mixed(size, buffers, context):  # type: ignore[no-untyped-def]
    """Attention's heads, each of `size` numbers, as inputs of the output linear."""
    num_heads = buffers.mixed.shape[1]
    flat, scratch = np.empty(num_heads * size, np.float32), alloc_scratch(num_heads * size)
    first, end = partition(context, len(buffers.mixed))
    for row in range(first, end):
        for index in range(num_heads):
            for i in range(size):
                flat[index * size + i] = buffers.mixed[row, index, i]
        quantize_and_pack_row(flat, scratch, buffers.mixed_heads, row, len(buffers.mixed))


@njit(cache=True, nogil=True, error_model="numpy")
def gate_rows(size, buffers, context):  # type: ignore[no-untyped-def]
    """silu(gate) * up of `size` numbers, as inputs of the down linear."""
    product, scratch = np.empty(size, np.float32), alloc_scratch(size)
    first, end = partition(context, len(buffers.gate_up))
    for row in range(first, end):
        both = buffers.gate_up[row]
        gated(both[:size], both[size : 2 * size], product)
        quantize_and_pack_row(product, scratch, buffers.inner, row, len(buffers.gate_up))
