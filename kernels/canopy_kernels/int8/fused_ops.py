"""Phases that quantized networks of the Llama family share; each computes a worker's share.

Their buffers are those of canopy_kernels.int8.buffers, or others with the same names; their weights
are of any format of canopy_kernels.int8.linears.
"""

import numpy as np
from numba import njit

from canopy_kernels.cpu.threads import partition
from canopy_kernels.int8.linears import alloc_scratch, quantize_and_pack_row
from canopy_kernels.int8.rows import add, gated, rms_norm


@njit(cache=True, nogil=True, error_model="numpy")
def norm_rows(hidden, weight, eps, buffers, context):
    """Add what the last linear made of the rows, then norm and quantize them."""
    size = hidden.shape[1]
    normed, scratch = np.empty(size, np.float32), alloc_scratch(size)
    first, end = partition(context, len(hidden))
    for row in range(first, end):
        add(hidden[row], buffers.change[row, :size])
        rms_norm(hidden[row], weight, eps, normed)
        quantize_and_pack_row(normed, scratch, buffers.hidden, row, len(hidden))


@njit(cache=True, nogil=True, error_model="numpy")
def quantize_mixed(size, buffers, context):
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
def gate_rows(size, buffers, context):
    """silu(gate) * up of `size` numbers, as inputs of the down linear."""
    product, scratch = np.empty(size, np.float32), alloc_scratch(size)
    first, end = partition(context, len(buffers.gate_up))
    for row in range(first, end):
        both = buffers.gate_up[row]
        gated(both[:size], both[size : 2 * size], product)
        quantize_and_pack_row(product, scratch, buffers.inner, row, len(buffers.gate_up))
