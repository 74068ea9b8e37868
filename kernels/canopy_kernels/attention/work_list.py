"""What the programs of tree attention do: a list of work items, made on the device.

An item is a tile of a sequence's rows and a part of its context; the last part of a tile has the
step's own rows too. Rows are packed with the query heads that share a KV head: entry m of a
sequence is row m div group, head m mod group. A context is split only as far as that keeps the
card busy: the parts of all sequences have one length, the shortest of a few for which all items
find a place on the card at once, and if there is none, nothing is split.

Rows behind the last sequence form items that see nothing, so that their results are 0.
"""

from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl

BLOCK_ITEMS = 64
ALIGNED_ITEMS = 4  # of 16 bytes, so that every list starts at a multiple of them
MIN_PART = 256  # keys; a shorter part costs more to merge than it saves
NUM_LENGTHS = 32  # of parts, each a quarter longer than the one before: 256 keys to 258,000

_BLOCK_ITEMS = tl.constexpr(BLOCK_ITEMS)
_MIN_PART, _NUM_LENGTHS = tl.constexpr(MIN_PART), tl.constexpr(NUM_LENGTHS)
_WHOLE = tl.constexpr(1 << 30)


class WorkShape(NamedTuple):
    """What a list depends on beside the rows."""

    group: int  # query heads of a KV head
    tile_rows: int
    tile_keys: int
    window: int  # of sliding attention; 0: none
    max_split_items: int  # items that may be at work at once, of one KV head


class WorkList(NamedTuple):
    """int32 [room] each: the items, the first item of each tile, and counts [2] of both."""

    first_rows: Any  # of the item's sequence
    num_rows: Any  # of the sequence
    first_entries: Any  # of the tile, packed
    sequences: Any
    contexts: Any
    begins: Any  # keys begin .. end of the sequence; own rows stand behind the context
    ends: Any
    parts: Any
    num_parts: Any
    tiles: Any
    counts: Any

    @staticmethod
    def of(
        row_starts: torch.Tensor, context_lengths: torch.Tensor, num_rows: int, shape: WorkShape
    ) -> "WorkList":
        """In one launch. row_starts: int32 [S + 1]; context_lengths: int32 [S]."""
        num_sequences = len(context_lengths)
        room = max(most_tiles(num_rows, num_sequences, shape), shape.max_split_items)
        room = triton.cdiv(room, ALIGNED_ITEMS) * ALIGNED_ITEMS  # one variant of the kernels
        work = WorkList._make([*row_starts.new_empty((10, room)), row_starts.new_empty(2)])
        _list_work_kernel[(triton.cdiv(room, BLOCK_ITEMS),)](
            row_starts,
            context_lengths,
            num_sequences,
            num_rows,
            work,
            shape.max_split_items,
            shape.group,
            shape.tile_rows,
            shape.tile_keys,
            shape.window,
            triton.next_power_of_2(num_sequences + 1),
        )
        return work


def most_tiles(num_rows: int, num_sequences: int, shape: WorkShape) -> int:
    """How many tiles so many rows fill at most, whichever sequences they belong to."""
    return triton.cdiv(num_rows * shape.group, shape.tile_rows) + num_sequences + 1


def fewest_tiles(num_rows: int, shape: WorkShape) -> int:
    """How many tiles so many rows fill at least."""
    return triton.cdiv(num_rows * shape.group, shape.tile_rows)


@triton.jit(do_not_specialize=["num_sequences", "num_rows", "max_split_items"])
def _list_work_kernel(
    row_starts_ptr,
    context_lengths_ptr,
    num_sequences,
    num_rows,
    work,
    max_split_items,
    GROUP: tl.constexpr,
    TILE_ROWS: tl.constexpr,
    TILE_KEYS: tl.constexpr,
    WINDOW: tl.constexpr,
    BLOCK_SEQUENCES: tl.constexpr,
):
    sequences = tl.arange(0, BLOCK_SEQUENCES)
    inputs = (row_starts_ptr, context_lengths_ptr, num_sequences, num_rows)
    _, num_own, context = _sequences(inputs, sequences)
    num_tiles = tl.cdiv(num_own * GROUP, TILE_ROWS)
    first_key = _first_key(context, WINDOW, TILE_KEYS)
    length = _part_length(context - first_key, num_tiles, max_split_items, TILE_KEYS)
    num_items = num_tiles * _num_parts(context - first_key, length)
    item_ends, tile_ends = tl.cumsum(num_items, 0), tl.cumsum(num_tiles, 0)
    if tl.program_id(0) == 0:
        tl.store(work.counts, tl.sum(num_items, 0))
        tl.store(work.counts + 1, tl.sum(num_tiles, 0))

    items = tl.program_id(0) * _BLOCK_ITEMS + tl.arange(0, _BLOCK_ITEMS)
    is_before = item_ends[None, :] <= items[:, None]
    sequence = tl.sum(is_before.to(tl.int32), 1)
    within = items - tl.max(tl.where(is_before, item_ends[None, :], 0), 1)
    tiles_before = tl.max(tl.where(is_before, tile_ends[None, :], 0), 1)
    _write_items(
        inputs, work, (items, sequence, within, tiles_before), length, GROUP, TILE_ROWS, TILE_KEYS,
        WINDOW,
    )  # fmt: skip


@triton.jit
def _write_items(
    inputs,
    work,
    place,
    length,
    GROUP: tl.constexpr,
    TILE_ROWS: tl.constexpr,
    TILE_KEYS: tl.constexpr,
    WINDOW: tl.constexpr,
):
    items, sequence, within, tiles_before = place
    first_row, num_own, context = _sequences(inputs, sequence)
    first_key = _first_key(context, WINDOW, TILE_KEYS)
    num_parts = _num_parts(context - first_key, length)
    tile, part = within // num_parts, within % num_parts
    begin = first_key + part * length
    last_row = tl.minimum(((tile + 1) * TILE_ROWS - 1) // GROUP, num_own - 1)
    end = tl.where(part == num_parts - 1, context + last_row + 1, begin + length)
    is_real = sequence < inputs[2]  # others see nothing
    is_item = sequence <= inputs[2]
    tl.store(work.first_rows + items, first_row, is_item)
    tl.store(work.num_rows + items, num_own, is_item)
    tl.store(work.first_entries + items, tile * TILE_ROWS, is_item)
    tl.store(work.sequences + items, tl.where(is_real, sequence, 0), is_item)
    tl.store(work.contexts + items, context, is_item)
    tl.store(work.begins + items, begin, is_item)
    tl.store(work.ends + items, tl.where(is_real, end, 0), is_item)
    tl.store(work.parts + items, part, is_item)
    tl.store(work.num_parts + items, num_parts, is_item)
    tl.store(work.tiles + tiles_before + tile, items, is_item & (part == 0))


@triton.jit
def _sequences(inputs, sequences):
    """First row, number of rows, context of some sequences; number S holds the rows behind."""
    row_starts_ptr, context_lengths_ptr, num_sequences, num_rows = inputs
    is_real = sequences < num_sequences
    starts = tl.load(row_starts_ptr + sequences, sequences <= num_sequences, num_rows)
    ends = tl.load(row_starts_ptr + sequences + 1, is_real, num_rows)
    return starts, ends - starts, tl.load(context_lengths_ptr + sequences, is_real, 0)


@triton.jit
def _first_key(context, WINDOW: tl.constexpr, TILE_KEYS: tl.constexpr):
    """The tile of keys where the window of a sequence's first row begins."""
    if WINDOW == 0:
        return context * 0
    return tl.maximum(context - WINDOW + 1, 0) // TILE_KEYS * TILE_KEYS


@triton.jit
def _num_parts(span, length):
    return tl.maximum(tl.cdiv(span, length), 1)


@triton.jit
def _part_length(spans, num_tiles, max_split_items, TILE_KEYS: tl.constexpr):
    """The shortest length for which all items have a place; longer than any context if none has."""
    growth = tl.exp2(tl.arange(0, _NUM_LENGTHS) * 0.32192809)  # powers of 1.25
    lengths = (growth * (_MIN_PART // TILE_KEYS)).to(tl.int32) * TILE_KEYS
    num_parts = _num_parts(spans[None, :], lengths[:, None])
    num_items = tl.sum(num_tiles[None, :] * num_parts, 1)
    return tl.min(tl.where(num_items <= max_split_items, lengths, _WHOLE), 0)
