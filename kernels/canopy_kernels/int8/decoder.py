"""All layers of a decoder of the Llama family, on quantized weights, as one function of a team.

    phases of a layer         norm | qkv | rope, cache write | attention | quantize | output
                              | add, norm | gate and up | gate, quantize | down
    shared out by             rows, or outputs (linears), or units of rows and a KV head (attention)

Workers meet between phases. Shapes: T rows of a step, E hidden size, H query heads, K KV heads,
D head_dim, I inner size, L layers; `*` marks sizes that the linears pad.
"""

from typing import NamedTuple

import numpy as np
from numba import njit

from canopy_kernels.cpu.threads import WorkerThreads, barrier, partition, without_refcounts
from canopy_kernels.int8.attention import attend_partition, prefetch_partition, put_query
from canopy_kernels.int8.attention_scores import prefetch_items
from canopy_kernels.int8.buffers import RowFormats, Sizes, Workspace
from canopy_kernels.int8.fused_ops import gate_rows, norm_rows, quantize_mixed
from canopy_kernels.int8.kv_cache import (
    GROUP,
    Int8KeyValues,
    alloc_levels,
    layer_of,
    put_key,
    put_value,
)
from canopy_kernels.int8.linears import AnyLinears, alloc_scratch, linear, quantize_and_pack_row
from canopy_kernels.int8.rows import add, rms_norm, rope
from canopy_kernels.int8.work_items import most_groups


class Weights(NamedTuple):
    """Of all layers, and of the head as the only one of its kind."""

    attention_norm: np.ndarray  # float32 [L, E]
    qkv: AnyLinears  # (H + 2K) * D outputs: queries, keys, values
    qk_norm: np.ndarray  # float32 [L, H + K, D]; without a norm of queries and keys [L, 0, D]
    output: AnyLinears
    mlp_norm: np.ndarray  # float32 [L, E]
    gate_up: AnyLinears  # 2I outputs
    down: AnyLinears
    norm: np.ndarray  # float32 [1, E]
    head: AnyLinears  # vocabulary


class Shape(NamedTuple):
    """Sizes that the weights do not tell."""

    num_heads: int
    num_kv_heads: int
    head_dim: int
    inner_size: int
    norm_eps: np.float32


class Step(NamedTuple):
    """What is computed; `layout` is `PagedRows.arrays`."""

    hidden: np.ndarray  # float32 [T, E] embeddings; overwritten
    positions: np.ndarray  # int64 [T]
    cosines: np.ndarray  # float32 [positions, D]
    sines: np.ndarray  # float32 [positions, D]
    layout: tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray, np.ndarray, int]
    logit_rows: np.ndarray  # int64 [n]
    cache: Int8KeyValues  # of all layers; the rows' slots are written
    tap_layers: np.ndarray  # int64 [n] before which layers hidden states are kept
    aux_hidden_states: np.ndarray  # float32 [T, n, E]; overwritten


def workspace(weights: Weights, shape: Shape, num_workers: int) -> Workspace:
    """For `decode_step` with these weights and a team of so many."""
    return Workspace(
        Sizes(
            hidden=weights.norm.shape[1],
            num_heads=shape.num_heads,
            head_dim=shape.head_dim,
            inner=shape.inner_size,
            qkv=weights.qkv.bias.shape[1],
            change=weights.down.bias.shape[1],
            gate_up=weights.gate_up.bias.shape[1],
            logits=weights.head.bias.shape[1],
            num_kv_heads=shape.num_kv_heads,
            num_workers=num_workers,
        ),
        RowFormats(weights.qkv.new_rows, weights.head.new_rows),
    )


def decode_step(
    weights: Weights, shape: Shape, step: Step, workspace: Workspace, team: WorkerThreads
) -> np.ndarray:
    """Compute a step's rows and write their keys and values.

    Returns the logits, float32 [n, vocabulary*], which last until the workspace's next step.
    """
    num_rows, (*_, block_tables, block_size) = len(step.hidden), step.layout
    num_groups = most_groups(block_tables.shape[1], block_size, num_rows)
    buffers = workspace.buffers(num_rows, len(step.logit_rows), num_groups)
    if num_rows:
        team.run(_decode_partition, weights, shape, step, buffers)
    return buffers.logits


@njit(cache=True, nogil=True, error_model="numpy")
def _decode_partition(weights, shape, step, buffers, context):
    weights, shape, step, buffers, context = without_refcounts(
        (weights, shape, step, buffers, context)
    )
    for layer in range(len(weights.attention_norm)):
        norm_rows(step.hidden, weights.attention_norm[layer], shape.norm_eps, buffers, context)
        _keep_taps(step, layer, context)
        _ask_for_cache(step, buffers, layer, context)
        barrier(context)
        linear(buffers.hidden, weights.qkv, layer, buffers.qkv, context)
        barrier(context)
        _place_heads(weights.qk_norm, shape, step, buffers, layer, context)
        barrier(context)
        attend_partition(
            buffers.queries,
            layer_of(step.cache, layer),
            step.layout,
            buffers.scratch,
            buffers.mixed,
            context.worker,
            context.num_workers,
        )
        barrier(context)
        quantize_mixed(shape.head_dim, buffers, context)
        barrier(context)
        linear(buffers.mixed_heads, weights.output, layer, buffers.change, context)
        barrier(context)
        norm_rows(step.hidden, weights.mlp_norm[layer], shape.norm_eps, buffers, context)
        barrier(context)
        linear(buffers.hidden, weights.gate_up, layer, buffers.gate_up, context)
        barrier(context)
        gate_rows(shape.inner_size, buffers, context)
        barrier(context)
        linear(buffers.inner, weights.down, layer, buffers.change, context)
        barrier(context)
    _norm_logit_rows(step, weights.norm[0], shape.norm_eps, buffers, context)
    barrier(context)
    linear(buffers.head_inputs, weights.head, 0, buffers.logits, context)


@njit(cache=True, nogil=True, error_model="numpy")
def _keep_taps(step, layer, context):
    """Copy hidden states of the rows that this worker has just brought up to date."""
    first, end = partition(context, len(step.hidden))
    for aux_layer in range(len(step.tap_layers)):
        if step.tap_layers[aux_layer] == layer:
            for row in range(first, end):
                step.aux_hidden_states[row, aux_layer] = step.hidden[row]


@njit(cache=True, nogil=True, error_model="numpy")
def _ask_for_cache(step, buffers, layer, context):
    """What is written to the cache, and what attention will read first, has a linear to come."""
    cache, num_workers = layer_of(step.cache, layer), context.num_workers
    slots = step.layout[0]
    first, end = partition(context, len(slots))
    for row in range(first, end):
        if row == first or slots[row] // GROUP != slots[row - 1] // GROUP:
            for kv_head in range(len(cache.keys)):
                prefetch_items(cache, slots[row] // GROUP, kv_head)
    prefetch_partition(
        buffers.queries, cache, step.layout, buffers.scratch, context.worker, num_workers
    )


@njit(cache=True, nogil=True, error_model="numpy")
def _norm_logit_rows(step, weight, eps, buffers, context):
    """The same for the rows whose logits are wanted, moved together."""
    size = step.hidden.shape[1]
    normed, scratch = np.empty(size, np.float32), alloc_scratch(size)
    first, end = partition(context, len(step.logit_rows))
    for index in range(first, end):
        row = step.logit_rows[index]
        add(step.hidden[row], buffers.change[row, :size])
        rms_norm(step.hidden[row], weight, eps, normed)
        quantize_and_pack_row(normed, scratch, buffers.head_inputs, index, len(step.logit_rows))


@njit(cache=True, nogil=True, error_model="numpy")
def _place_heads(qk_norm, shape, step, buffers, layer, context):
    """Rotate queries and keys, and write keys and values into the cache."""
    size, num_heads, num_kv_heads = shape.head_dim, shape.num_heads, shape.num_kv_heads
    slots, cache = step.layout[0], layer_of(step.cache, layer)
    rotated, levels = np.empty(size, np.float32), alloc_levels(size)
    first, end = partition(context, len(slots))
    for row in range(first, end):
        cosines = step.cosines[step.positions[row]]
        sines = step.sines[step.positions[row]]
        for index in range(num_heads + num_kv_heads):
            head = buffers.qkv[row, index * size : (index + 1) * size]
            if qk_norm.shape[1] > 0:
                rms_norm(head, qk_norm[layer, index], shape.norm_eps, head)
            rope(head, cosines, sines, rotated)
            if index < num_heads:
                put_query(rotated, buffers.queries, row, index)
            else:
                put_key(rotated, cache, slots[row], index - num_heads, levels)
        for index in range(num_kv_heads):
            start = (num_heads + num_kv_heads + index) * size
            head = buffers.qkv[row, start : start + size]
            put_value(head, cache, slots[row], index, levels)
