"""Every row meets every key of its sequence once, in as many parts as the card has room for."""

import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from kernel_interpreter import DEVICE

from canopy_kernels.attention.work_list import (
    MIN_PART,
    WorkList,
    WorkShape,
    fewest_tiles,
    most_tiles,
)

SEQUENCES = st.lists(st.tuples(st.integers(0, 40), st.integers(0, 5000)), min_size=1, max_size=5)


def listed(sequences, num_padded: int, shape: WorkShape) -> tuple[WorkList, int]:
    """The list of sequences of (rows, context), on the host, and how many rows they have."""
    sizes, contexts = zip(*sequences, strict=True)
    starts = torch.tensor(np.cumsum([0, *sizes]), dtype=torch.int32, device=DEVICE)
    lengths = torch.tensor(contexts, dtype=torch.int32, device=DEVICE)
    num_rows = sum(sizes) + num_padded
    work = WorkList.of(starts, lengths, num_rows, shape)
    return WorkList(*(tensor.cpu().numpy() for tensor in work)), num_rows


@settings(max_examples=60)
@given(
    sequences=SEQUENCES,
    num_padded=st.integers(0, 9),
    group=st.sampled_from([1, 3, 8]),
    tile_rows=st.sampled_from([16, 64]),
    window=st.sampled_from([0, 0, 100, 2000]),
    max_split_items=st.integers(1, 60),
)
def test_parts_of_a_tile_follow_one_another_over_all_it_sees(
    sequences, num_padded, group, tile_rows, window, max_split_items
):
    shape = WorkShape(group, tile_rows, 64, window, max_split_items)
    work, num_rows = listed(sequences, num_padded, shape)
    num_items, num_tiles = work.counts
    assert fewest_tiles(num_rows, shape) <= num_tiles <= most_tiles(num_rows, len(sequences), shape)
    assert num_items <= max(num_tiles, max_split_items)
    next_item, next_tile, first_row = 0, 0, 0
    for number, (size, context) in enumerate([*sequences, (num_padded, 0)]):
        for first in range(0, size * group, tile_rows):
            assert work.tiles[next_tile] == next_item
            last_row = min((first + tile_rows - 1) // group, size - 1)
            place = max(context - window + 1, 0) // 64 * 64 if window else 0
            for part in range(work.num_parts[next_item]):
                assert work.parts[next_item] == part
                assert work.num_parts[next_item] == work.num_parts[work.tiles[next_tile]]
                assert work.first_rows[next_item] == first_row
                assert work.num_rows[next_item] == size
                assert work.first_entries[next_item] == first
                if number < len(sequences):
                    assert work.sequences[next_item] == number
                    assert work.contexts[next_item] == context
                    assert work.begins[next_item] == place
                    place = work.ends[next_item]
                next_item += 1
            assert place == (context + last_row + 1 if number < len(sequences) else place)
            next_tile += 1
        first_row += size
    assert (next_item, next_tile) == (num_items, num_tiles)


def test_a_context_is_split_as_far_as_there_is_room():
    shape = WorkShape(4, 16, 64, 0, 32)
    for context, num_parts in ((MIN_PART, 1), (8 * MIN_PART, 8), (1 << 17, 32)):
        work, _ = listed([(4, context)], 0, shape)
        assert 0.75 * num_parts <= work.counts[0] <= num_parts
    work, _ = listed([(4, 1 << 17)] * 33, 0, shape)
    assert work.counts[0] == 33  # more tiles than places: nothing is split
