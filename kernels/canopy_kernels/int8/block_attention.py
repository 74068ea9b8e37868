"""Attention of a block drafter in float32: a row sees its whole context and its whole block.

    mixed[row, h] = sum over positions of softmax2(query . key) * value

of the anchor's context and of its block; softmax2 is the softmax to the base 2, for which queries
come scaled. Names and shapes are those of canopy_kernels.int8.block_drafter.
"""

import numpy as np
from numba import njit

from canopy_kernels.cpu.deterministic_sums import dot_at, total
from canopy_kernels.cpu.exp2 import exp2
from canopy_kernels.cpu.threads import partition
from canopy_kernels.int8.rows import add
from canopy_kernels.int8.weighted_sum import weighted_sum


@njit(cache=True, nogil=True, error_model="numpy")
def attend_blocks(block, layer, buffers, shape, context):
    """Worker's share; a unit of work is one half of an anchor's rows and one KV head."""
    num_own, group = block.copied.shape[1], shape.num_heads // shape.num_kv_heads
    powers = np.empty((num_own * group, block.key_values.shape[1] + num_own), np.float32)
    first, end = partition(context, len(block.lengths) * shape.num_kv_heads * 2)
    for unit in range(first, end):
        head, half = unit // 2, unit % 2
        anchor, kv_head = head // shape.num_kv_heads, head % shape.num_kv_heads
        row = anchor * num_own + num_own * half // 2
        last = anchor * num_own + num_own * (half + 1) // 2
        queries = buffers.qkv[row:last], kv_head * group, group
        own = buffers.qkv[anchor * num_own : (anchor + 1) * num_own]
        keys = own[:, (shape.num_heads + kv_head) * shape.head_dim :]
        values = keys[:, shape.num_kv_heads * shape.head_dim :]
        known = block.key_values[anchor, : block.lengths[anchor], layer, :, kv_head]
        num_known = len(known)
        _score(queries, known[:, 0], shape.head_dim, powers)
        _score(queries, keys, shape.head_dim, powers[:, num_known:])
        for index in range((last - row) * group):
            _normalize(powers[index, : num_known + num_own])
        mixed = buffers.mixed[row:last, kv_head * group : (kv_head + 1) * group]
        _mix(powers, known[:, 1], values, mixed)


@njit(cache=True, nogil=True, error_model="numpy")
def _score(queries, keys, size, powers):
    """powers[row and head, at]: products of the queries and the keys, one key after the other."""
    rows, first_head, group = queries
    start, row_bytes = rows.ctypes.data + 4 * first_head * size, rows.strides[0]
    for at in range(len(keys)):
        key = keys.ctypes.data + at * keys.strides[0]
        for index in range(len(rows) * group):
            query = start + index // group * row_bytes + 4 * size * (index % group)
            powers[index, at] = dot_at(query, key, size)


@njit(cache=True, nogil=True, error_model="numpy")
def _mix(shares, known, own, mixed):
    """mixed, float32 [rows, heads, D]: the values of the context and of the block, by share."""
    num_known, group, size = len(known), mixed.shape[1], mixed.shape[2]
    of_own = np.empty(size, np.float32)
    for index in range(len(mixed) * group):
        out, own_shares = mixed[index // group, index % group], shares[index, num_known:]
        weighted_sum(
            out.ctypes.data,
            shares[index].ctypes.data,
            known.ctypes.data,
            known.strides[0],
            num_known,
            size,
        )
        weighted_sum(
            of_own.ctypes.data,
            own_shares.ctypes.data,
            own.ctypes.data,
            own.strides[0],
            len(own),
            size,
        )
        add(out, of_own)


@njit(cache=True, nogil=True, error_model="numpy")
def _normalize(powers):
    """2^power over the sum of all, in place."""
    top = powers[0]
    for power in powers:
        top = max(top, power)
    for at in range(len(powers)):
        powers[at] = exp2(powers[at] - top)
    factor = np.float32(1.0) / total(powers)
    for at in range(len(powers)):
        powers[at] *= factor
