"""Writing rows into the paged KV cache, and moving accepted rows into place.

    write_kv:   keys[layer][slots[r]] = new_keys[r], values alike        for every row r
    commit_kv:  cache[:, destinations[s, j]] = cache[:, sources[s, j]]   for all layers

    keys, values   [num_layers, num_slots, KVH, D], contiguous
    slots          int64; -1 stands for "nothing": such rows and moves are skipped

All moves of a sequence read before any of them writes, so its sources and destinations may overlap
in any way; slots of different sequences are disjoint. Copies are exact.
"""

import torch
import triton
import triton.language as tl

WRITE_CHUNK = 1024  # elements of a row that one program copies
MOVE_ELEMENTS = 4096  # elements that one program holds while it moves them


def write_kv_reference(
    layer_keys: torch.Tensor,
    layer_values: torch.Tensor,
    slots: torch.Tensor,
    new_keys: torch.Tensor,
    new_values: torch.Tensor,
) -> None:
    """The op by indexing."""
    rows = (slots >= 0).nonzero()[:, 0]
    layer_keys[slots[rows]] = new_keys[rows].to(layer_keys.dtype)
    layer_values[slots[rows]] = new_values[rows].to(layer_values.dtype)


def write_kv(
    layer_keys: torch.Tensor,
    layer_values: torch.Tensor,
    slots: torch.Tensor,
    new_keys: torch.Tensor,
    new_values: torch.Tensor,
) -> None:
    """Store the rows of a step in one layer, in place.

    layer_*: [num_slots, KVH, D]. slots: int64 [T], distinct. new_*: [T, KVH, D], last two
    dimensions contiguous.
    """
    width = layer_keys[0].numel()
    assert layer_keys.is_contiguous()
    assert layer_values.is_contiguous()
    assert layer_keys.shape == layer_values.shape
    assert slots.dtype == torch.int64
    for rows in (new_keys, new_values):
        assert rows.shape == (len(slots), *layer_keys.shape[1:])
        assert rows[:1].is_contiguous()
    if len(slots) > 0:
        _write_kv_kernel[(len(slots), triton.cdiv(width, WRITE_CHUNK))](
            layer_keys,
            layer_values,
            slots,
            new_keys,
            new_values,
            new_keys.stride(0),
            new_values.stride(0),
            width,
            WRITE_CHUNK,
        )


@triton.jit
def _write_kv_kernel(
    keys_ptr,  # [num_slots, width]
    values_ptr,  # [num_slots, width]
    slots_ptr,  # int64 [T]
    new_keys_ptr,  # [T, width]
    new_values_ptr,  # [T, width]
    key_stride,
    value_stride,
    width,
    CHUNK: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    slot = tl.load(slots_ptr + row)
    columns = tl.program_id(1) * CHUNK + tl.arange(0, CHUNK)
    stored = columns < tl.where(slot >= 0, width, 0)
    key = tl.load(new_keys_ptr + row * key_stride + columns, stored)
    value = tl.load(new_values_ptr + row * value_stride + columns, stored)
    tl.store(keys_ptr + slot * width + columns, key, stored)
    tl.store(values_ptr + slot * width + columns, value, stored)


def commit_kv_reference(
    keys: torch.Tensor, values: torch.Tensor, sources: torch.Tensor, destinations: torch.Tensor
) -> None:
    """The op by indexing."""
    moved = (sources >= 0) & (destinations >= 0)
    for cache in (keys, values):
        cache[:, destinations[moved]] = cache[:, sources[moved]]


def commit_kv(
    keys: torch.Tensor, values: torch.Tensor, sources: torch.Tensor, destinations: torch.Tensor
) -> None:
    """Move rows between slots in all layers, in place and in one launch.

    sources, destinations: int64 [S, P], -1 where a sequence has fewer than P moves; the
    destinations of a sequence are distinct.
    """
    num_layers, num_slots = keys.shape[:2]
    width = keys[0, 0].numel()
    num_sequences, num_moves = sources.shape
    assert keys.is_contiguous()
    assert values.is_contiguous()
    assert keys.shape == values.shape
    assert sources.shape == destinations.shape
    assert sources.is_contiguous()
    assert destinations.is_contiguous()
    moves = triton.next_power_of_2(max(num_moves, 1))
    chunk = min(MOVE_ELEMENTS // moves, triton.next_power_of_2(width))
    assert chunk >= 16, "a path is at most 256 nodes long"
    if sources.numel() > 0:
        _commit_kv_kernel[(num_layers, num_sequences, triton.cdiv(width, chunk))](
            keys, values, sources, destinations, num_slots, num_moves, width, moves, chunk
        )


@triton.jit(do_not_specialize=["num_moves"])
def _commit_kv_kernel(
    keys_ptr,  # [num_layers, num_slots, width]
    values_ptr,  # [num_layers, num_slots, width]
    sources_ptr,  # int64 [S, num_moves]
    destinations_ptr,  # int64 [S, num_moves]
    num_slots,
    num_moves,
    width,
    MOVES: tl.constexpr,
    CHUNK: tl.constexpr,
):
    layer = tl.program_id(0).to(tl.int64)
    sequence = tl.program_id(1)
    moves = tl.arange(0, MOVES)
    columns = tl.program_id(2) * CHUNK + tl.arange(0, CHUNK)
    sources = tl.load(sources_ptr + sequence * num_moves + moves, moves < num_moves, -1)
    destinations = tl.load(destinations_ptr + sequence * num_moves + moves, moves < num_moves, -1)
    moved = ((sources >= 0) & (destinations >= 0))[:, None] & (columns < width)[None, :]
    first = layer * num_slots
    source_places = (first + sources)[:, None] * width + columns[None, :]
    places = (first + destinations)[:, None] * width + columns[None, :]
    keys = tl.load(keys_ptr + source_places, moved)
    values = tl.load(values_ptr + source_places, moved)
    tl.debug_barrier()  # no thread writes before every thread has read
    tl.store(keys_ptr + places, keys, moved)
    tl.store(values_ptr + places, values, moved)
