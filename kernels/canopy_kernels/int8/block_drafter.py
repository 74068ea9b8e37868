"""The passes of a block drafter on int8 weights, each one function of a worker team.

    encode     features -> fuse -> norm = vectors -> keys and values of all layers, keys rotated
    propose    rows = masks + inject(last vector) + length of the match + copy(copied tokens), the
               anchor in row 0 | layers, each as in canopy_kernels.int8.decoder | norm | adapter
               = decoded | head = logits, row code

The network is models.block_drafter.network. Attention is float32 and the only part that differs
from the target's: a row sees the whole context of its anchor and all rows of its block. Shapes: B
anchors of R rows in all, C context positions, E hidden size, H query heads, K KV heads, D head_dim,
L layers, N positions to take up; `*` marks sizes that the linears pad.
"""

from typing import NamedTuple

import numpy as np
from numba import njit

from canopy_kernels.cpu.exp2 import LOG2_E
from canopy_kernels.cpu.threads import WorkerThreads, barrier, partition, without_refcounts
from canopy_kernels.int8.block_attention import attend_blocks
from canopy_kernels.int8.block_buffers import BlockBuffers, EncodeBuffers
from canopy_kernels.int8.decoder import Shape
from canopy_kernels.int8.fused_ops import gate_rows, norm_rows, quantize_mixed
from canopy_kernels.int8.linears import Linears, alloc_scratch, linear, quantize_and_pack_row
from canopy_kernels.int8.rows import rms_norm, rope


class ContextWeights(NamedTuple):
    """Of `encode`."""

    fuse: Linears
    norm: np.ndarray  # float32 [E]
    key_values: Linears  # layer after layer K * D keys and K * D values


class BlockWeights(NamedTuple):
    """Of `propose`; linears that stand alone are layer 0 of their kind."""

    inject: Linears
    copy: Linears
    masks: np.ndarray  # float32 [block, E]
    match_lengths: np.ndarray  # float32 [lengths, E]
    attention_norm: np.ndarray  # float32 [L, E]
    qkv: Linears  # (H + 2K) * D outputs
    output: Linears
    mlp_norm: np.ndarray  # float32 [L, E]
    gate_up: Linears
    down: Linears
    norm: np.ndarray  # float32 [E]
    adapter: Linears
    head: Linears  # draft vocabulary
    row_code: Linears  # rank


class Positions(NamedTuple):
    """What is taken up."""

    hidden_states: np.ndarray  # float32 [N, inputs]
    cosines: np.ndarray  # float32 [N, D]
    sines: np.ndarray  # float32 [N, D]


class Block(NamedTuple):
    """What is proposed for."""

    anchors: np.ndarray  # float32 [B, E] embeddings
    last: np.ndarray  # float32 [B, E] context vectors before the anchors
    key_values: np.ndarray  # float32 [B, C, L, 2, K, D]
    lengths: np.ndarray  # int64 [B] context positions that are real, the first ones
    copied: np.ndarray  # float32 [B, block, E] embeddings
    match_lengths: np.ndarray  # int64 [B]
    cosines: np.ndarray  # float32 [R, D]
    sines: np.ndarray  # float32 [R, D]


def encode(
    weights: ContextWeights,
    shape: Shape,
    positions: Positions,
    buffers: EncodeBuffers,
    team: WorkerThreads,
) -> None:
    """Fill the buffers' `vectors` [N, E] and `key_values` [N, L * 2 * K * D *]."""
    team.run(_encode_partition, weights, shape, positions, buffers)


def propose(
    weights: BlockWeights, shape: Shape, block: Block, buffers: BlockBuffers, team: WorkerThreads
) -> None:
    """Fill the buffers' `logits` [R, V*] and `codes` [R, rank*]."""
    team.run(_propose_partition, weights, shape, block, buffers)


@njit(cache=True, nogil=True, error_model="numpy")
def _encode_partition(weights, shape, positions, buffers, context):
    weights, shape, positions, buffers, context = without_refcounts(
        (weights, shape, positions, buffers, context)
    )
    _put_rows(positions.hidden_states, buffers.hidden_states, context)
    barrier(context)
    linear(buffers.hidden_states, weights.fuse, 0, buffers.fused, context)
    barrier(context)
    first, end = partition(context, len(buffers.vectors))
    scratch = alloc_scratch(buffers.vectors.shape[1])
    for row in range(first, end):
        fused = buffers.fused[row, : buffers.vectors.shape[1]]
        rms_norm(fused, weights.norm, shape.norm_eps, buffers.vectors[row])
        quantize_and_pack_row(
            buffers.vectors[row], scratch, buffers.hidden, row, len(buffers.vectors)
        )
    barrier(context)
    linear(buffers.hidden, weights.key_values, 0, buffers.key_values, context)
    barrier(context)
    _rotate_keys(positions, buffers.key_values, shape, context)


@njit(cache=True, nogil=True, error_model="numpy")
def _rotate_keys(positions, key_values, shape, context):
    size, rotated = shape.head_dim, np.empty(shape.head_dim, np.float32)
    num_keys = shape.num_kv_heads * size
    first, end = partition(context, len(key_values))
    for row in range(first, end):
        for layer in range(key_values.shape[1] // (2 * num_keys)):
            for head in range(shape.num_kv_heads):
                start = 2 * num_keys * layer + head * size
                key = key_values[row, start : start + size]
                rope(key, positions.cosines[row], positions.sines[row], rotated)
                key[:] = rotated


@njit(cache=True, nogil=True, error_model="numpy")
def _propose_partition(weights, shape, block, buffers, context):
    weights, shape, block, buffers, context = without_refcounts(
        (weights, shape, block, buffers, context)
    )
    _put_rows(block.last, buffers.last, context)
    _put_copied(block, buffers, context)
    barrier(context)
    linear(buffers.last, weights.inject, 0, buffers.injected, context)
    linear(buffers.copied, weights.copy, 0, buffers.change, context)
    barrier(context)
    _start_rows(weights, block, buffers, context)
    barrier(context)
    for layer in range(len(weights.attention_norm)):
        norm_rows(buffers.rows, weights.attention_norm[layer], shape.norm_eps, buffers, context)
        barrier(context)
        linear(buffers.hidden, weights.qkv, layer, buffers.qkv, context)
        barrier(context)
        _rotate_heads(block, buffers.qkv, shape, context)
        barrier(context)
        attend_blocks(block, layer, buffers, shape, context)
        barrier(context)
        quantize_mixed(shape.head_dim, buffers, context)
        barrier(context)
        linear(buffers.mixed_heads, weights.output, layer, buffers.change, context)
        barrier(context)
        norm_rows(buffers.rows, weights.mlp_norm[layer], shape.norm_eps, buffers, context)
        barrier(context)
        linear(buffers.hidden, weights.gate_up, layer, buffers.gate_up, context)
        barrier(context)
        gate_rows(shape.inner_size, buffers, context)
        barrier(context)
        linear(buffers.inner, weights.down, layer, buffers.change, context)
        barrier(context)
    norm_rows(buffers.rows, weights.norm, shape.norm_eps, buffers, context)
    barrier(context)
    linear(buffers.hidden, weights.adapter, 0, buffers.decoded, context)
    barrier(context)
    _put_rows(buffers.decoded[:, : buffers.rows.shape[1]], buffers.hidden, context)
    barrier(context)
    linear(buffers.hidden, weights.head, 0, buffers.logits, context)
    linear(buffers.hidden, weights.row_code, 0, buffers.codes, context)


@njit(cache=True, nogil=True, error_model="numpy")
def _put_rows(values, rows, context):
    scratch = alloc_scratch(values.shape[1])
    first, end = partition(context, len(values))
    for row in range(first, end):
        quantize_and_pack_row(values[row], scratch, rows, row, len(values))


@njit(cache=True, nogil=True, error_model="numpy")
def _put_copied(block, buffers, context):
    size, scratch = block.copied.shape[1], alloc_scratch(block.copied.shape[2])
    first, end = partition(context, len(buffers.rows))
    for row in range(first, end):
        copied = block.copied[row // size, row % size]
        quantize_and_pack_row(copied, scratch, buffers.copied, row, len(buffers.rows))


@njit(cache=True, nogil=True, error_model="numpy")
def _start_rows(weights, block, buffers, context):
    """What the layers start from; a copy counts where there is a match."""
    size, hidden = block.copied.shape[1], buffers.rows.shape[1]
    first, end = partition(context, len(buffers.rows))
    for row in range(first, end):
        anchor, step, out = row // size, row % size, buffers.rows[row]
        length = block.match_lengths[anchor]
        for i in range(hidden):
            out[i] = weights.masks[step, i] + buffers.injected[anchor, i]
            out[i] += weights.match_lengths[length, i]
        if length > 0:
            for i in range(hidden):
                out[i] += buffers.change[row, i]
        if step == 0:
            for i in range(hidden):
                out[i] += block.anchors[anchor, i]
        buffers.change[row] = np.float32(0.0)  # nothing for the first norm to add


@njit(cache=True, nogil=True, error_model="numpy")
def _rotate_heads(block, qkv, shape, context):
    """Queries and keys; queries also get attention's scale and the base 2 of its powers."""
    size, rotated = shape.head_dim, np.empty(shape.head_dim, np.float32)
    scale = LOG2_E / np.sqrt(np.float32(size))
    first, end = partition(context, len(qkv))
    for row in range(first, end):
        for index in range(shape.num_heads + shape.num_kv_heads):
            head = qkv[row, index * size : (index + 1) * size]
            rope(head, block.cosines[row], block.sines[row], rotated)
            for i in range(size):
                head[i] = rotated[i] * scale if index < shape.num_heads else rotated[i]
