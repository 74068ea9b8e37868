"""Attention of a step's rows over a paged KV cache, each row along its own path in the tree.

    path(r)   = committed context of r's sequence, by position; then r's ancestors in the step,
                by depth; then r
    score[j]  = scale * query[r, h] . keys[slot of path(r)[j], h div (H / KVH)]
    out[r, h] = sum over j of softmax(score)[j] * values[slot of path(r)[j], h div (H / KVH)]

    query, out     [T, H, D]              float32, bfloat16; on CUDA float16 too
    keys, values   [num_slots, KVH, D]    one layer of the cache; the step's own rows are in it

Arithmetic is float32. On the CPU every sum of a row runs in the order of its path, so the result
is bit-equal whether the row is computed alone, in any tree or in any batch. On CUDA the kernels
of canopy_kernels.attention.tree_attention_triton run.
Tolerance against the reference: 1e-5 for float32, 1e-2 for bfloat16, whose output is rounded.
"""

import math
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from typing import Any

import numpy as np
import torch
from numba import njit, types
from numba.extending import overload

from canopy_kernels.attention.options import PLAIN, AttentionOptions
from canopy_kernels.attention.paged_rows import PagedRows
from canopy_kernels.attention.tree_attention_triton import launch_tree_attention
from canopy_kernels.cpu.exp2 import exp2

# Sums may be reordered by the compiler, once for all calls: never by what a call holds.
_FIXED_ORDER = {"reassoc", "nsz", "contract"}
# Multiplications of queries by keys up to which waking other threads costs more than they save.
_SERIAL_WORK = 300_000


def tree_attention_reference(
    query: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    rows: PagedRows,
    scale: float,
    options: AttentionOptions = PLAIN,
) -> torch.Tensor:
    """`tree_attention`, row by row in plain torch; float64 stays so."""
    exact = torch.promote_types(query.dtype, torch.float32)
    group = query.shape[1] // keys.shape[1]
    parents, starts = rows.parent_rows.tolist(), rows.row_starts.tolist()
    out = torch.empty_like(query)
    for sequence, context_length in enumerate(rows.context_lengths.tolist()):
        positions = torch.arange(context_length, device=query.device)
        blocks = rows.block_tables[sequence].long()[positions // rows.block_size]
        context = blocks * rows.block_size + positions % rows.block_size
        for row in range(starts[sequence], starts[sequence + 1]):
            path = [row]
            while parents[path[0]] >= 0:
                path.insert(0, parents[path[0]])
            slots = torch.cat((context, rows.slots[path]))[-options.window :]
            path_keys = keys[slots].to(exact).repeat_interleave(group, dim=1)  # [n, H, D]
            path_values = values[slots].to(exact).repeat_interleave(group, dim=1)
            scores = scale * torch.einsum("hd,nhd->hn", query[row].to(exact), path_keys)
            weights = _softmax_reference(scores, options)
            out[row] = torch.einsum("hn,nhd->hd", weights, path_values).to(query.dtype)
    return out


def _softmax_reference(scores: torch.Tensor, options: AttentionOptions) -> torch.Tensor:
    """float32 [H, n] weights of scores [H, n]."""
    if options.soft_cap:
        scores = options.soft_cap * torch.tanh(scores / options.soft_cap)
    if options.sinks is None:
        return torch.softmax(scores, dim=1)
    return torch.softmax(torch.cat((scores, options.sinks[:, None]), dim=1), dim=1)[:, :-1]


def tree_attention(
    query: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    rows: PagedRows,
    scale: float,
    options: AttentionOptions = PLAIN,
) -> torch.Tensor:
    """The op of the module docstring; the result has the query's shape and dtype.

    On the CPU options take the path of the reference, which is slow.
    """
    assert query.shape[2] == keys.shape[2]
    assert query.shape[1] % keys.shape[1] == 0
    assert keys.shape == values.shape
    if query.is_cuda:
        return launch_tree_attention(query, keys, values, rows, scale, options)
    if options != PLAIN:
        return tree_attention_reference(query, keys, values, rows, scale, options)
    out = torch.empty(query.shape, dtype=torch.float32)
    arguments = (
        _numpy_view(query.contiguous()),
        _numpy_view(keys),
        _numpy_view(values),
        rows.arrays,
        np.float32(scale * math.log2(math.e)),  # softmax in powers of two
        out.numpy(),
    )
    num_workers = torch.get_num_threads()
    if num_workers == 1 or query.numel() * rows.longest_path <= _SERIAL_WORK:
        _attend_share(*arguments, 0, 1)
    else:
        _attend_on_threads(arguments, num_workers)
    return out.to(query.dtype)


def _attend_on_threads(arguments: tuple[Any, ...], num_workers: int) -> None:
    """One compiled function on every thread: a second copy of it may round differently."""
    share: Callable[..., None] = _attend_share
    others = [
        _other_threads(num_workers).submit(share, *arguments, worker, num_workers)
        for worker in range(1, num_workers)
    ]
    share(*arguments, 0, num_workers)
    for other in others:
        other.result()


@cache
def _other_threads(num_workers: int) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(num_workers - 1, "attention")


def _numpy_view(tensor: torch.Tensor) -> np.ndarray:
    """Of bfloat16, which NumPy lacks, the bits as int16."""
    is_bfloat16 = tensor.dtype == torch.bfloat16
    return (tensor.view(torch.int16) if is_bfloat16 else tensor).numpy()


def _widen(number):
    """float32 of a stored number."""


@overload(_widen, inline="always")
def _widen_overload(number):
    if number == types.int16:
        return lambda number: np.int32(np.int32(number) << 16).view(np.float32)
    return lambda number: number


@njit(cache=True, nogil=True, fastmath=_FIXED_ORDER, error_model="numpy")
def _attend_share(query, keys, values, layout, scale, out, worker, num_workers):
    """Workers take (KV head, row) pairs in turn: neighbours share a head's cached keys."""
    num_rows, num_heads, _ = query.shape
    num_kv_heads = keys.shape[1]
    group = num_heads // num_kv_heads
    sequences, lengths = _measure_paths(layout)
    longest = _padded(lengths.max())
    path = np.empty(longest, np.int64)
    scores = np.empty((group, longest), np.float32)
    for task in range(worker, num_kv_heads * num_rows, num_workers):
        kv_head, row = task // num_rows, task % num_rows
        length = lengths[row]
        _fill_path(path, length, row, sequences[row], layout)
        padded = path[: _padded(length)]
        _score(query, keys, padded, (row, kv_head), scores)
        for member in range(group):
            _softmax(scores[member, :length], scale)
            scores[member, length : len(padded)] = np.float32(0.0)
        _weigh(scores, values, padded, (row, kv_head), out)


@njit(inline="always")
def _padded(length):
    return (length + 3) // 4 * 4


@njit(inline="always")
def _measure_paths(layout):
    """Of every row its sequence, and how many tokens its path has."""
    _, parents, starts, context_lengths, _, _ = layout
    sequences = np.empty(len(parents), np.int64)
    lengths = np.empty(len(parents), np.int64)
    for sequence in range(len(context_lengths)):
        for row in range(starts[sequence], starts[sequence + 1]):
            sequences[row] = sequence
            parent = parents[row]
            lengths[row] = (context_lengths[sequence] if parent < 0 else lengths[parent]) + 1
    return sequences, lengths


@njit(inline="always")
def _fill_path(path, length, row, sequence, layout):
    """Slots of the row's path, the last one repeated up to the padded length."""
    slots, parents, _, context_lengths, block_tables, block_size = layout
    context_length = context_lengths[sequence]
    for start in range(0, context_length, block_size):
        first = np.int64(block_tables[sequence, start // block_size]) * block_size
        for offset in range(min(block_size, context_length - start)):
            path[start + offset] = first + offset
    for index in range(length - 1, context_length - 1, -1):
        path[index] = slots[row]
        row = parents[row]
    path[length : _padded(length)] = path[length - 1]


@njit(inline="always")
def _score(query, keys, path, place, scores):
    """Four keys at a time, for all query heads that share them: sums stay in registers."""
    row, kv_head = place
    group = scores.shape[0]
    for index in range(0, len(path), 4):
        key0, key1 = keys[path[index], kv_head], keys[path[index + 1], kv_head]
        key2, key3 = keys[path[index + 2], kv_head], keys[path[index + 3], kv_head]
        for member in range(group):
            head = query[row, kv_head * group + member]
            sum0, sum1, sum2, sum3 = np.float32(0), np.float32(0), np.float32(0), np.float32(0)
            for d in range(len(head)):
                sum0 += _widen(head[d]) * _widen(key0[d])
                sum1 += _widen(head[d]) * _widen(key1[d])
                sum2 += _widen(head[d]) * _widen(key2[d])
                sum3 += _widen(head[d]) * _widen(key3[d])
            scores[member, index], scores[member, index + 1] = sum0, sum1
            scores[member, index + 2], scores[member, index + 3] = sum2, sum3


@njit(inline="always")
def _softmax(row, scale):
    """In place: powers of two of scale * score, normalized."""
    highest = row[0]
    for index in range(len(row)):
        highest = max(highest, row[index])
    total = np.float32(0.0)
    for index in range(len(row)):
        weight = exp2((row[index] - highest) * scale)
        row[index] = weight
        total += weight
    for index in range(len(row)):
        row[index] /= total


@njit(inline="always")
def _weigh(weights, values, path, place, out):
    """Four values at a time, to load and store the output less often."""
    row, kv_head = place
    group = weights.shape[0]
    for member in range(group):
        out[row, kv_head * group + member] = np.float32(0.0)
    for index in range(0, len(path), 4):
        value0, value1 = values[path[index], kv_head], values[path[index + 1], kv_head]
        value2, value3 = values[path[index + 2], kv_head], values[path[index + 3], kv_head]
        for member in range(group):
            head = out[row, kv_head * group + member]
            weight0, weight1 = weights[member, index], weights[member, index + 1]
            weight2, weight3 = weights[member, index + 2], weights[member, index + 3]
            for d in range(len(head)):
                first = weight0 * _widen(value0[d]) + weight1 * _widen(value1[d])
                second = weight2 * _widen(value2[d]) + weight3 * _widen(value3[d])
                head[d] += first + second
