"""A row's attention is the same to the bit in a tree, in any batch, and all committed."""

import numpy as np
import pytest
import torch
from paged_cases import (
    BLOCK_SIZE,
    BUSHY,
    CHAIN,
    SCALE,
    context_slots,
    paged_rows,
    tensors,
)

from canopy_kernels.attention.batch_invariant_attention import batch_invariant_attention
from canopy_kernels.attention.paged_rows import PagedRows
from canopy_kernels.attention.split_kv import MIN_SPLIT
from canopy_kernels.attention.tree_attention import tree_attention_reference

TOLERANCE = {torch.float32: 2e-5, torch.bfloat16: 2e-2}
CASES = [
    ([0], [[-1]], (1, 1, 16), torch.float32),
    ([13, 0, 40], [CHAIN, BUSHY, [-1]], (6, 2, 24), torch.float32),
    ([MIN_SPLIT - 2, 7], [[-1, 0, 0, 2, 3], [-1, -1, 0]], (6, 2, 80), torch.bfloat16),
    ([MIN_SPLIT, 3], [CHAIN[:3], [-1]], (4, 4, 96), torch.bfloat16),
]


@pytest.mark.parametrize(("contexts", "forests", "heads", "dtype"), CASES)
def test_it_equals_the_reference(contexts, forests, heads, dtype):
    rows = paged_rows(contexts, forests)
    inputs = tensors(rows, *heads, dtype)
    given = batch_invariant_attention(*inputs, rows, SCALE).float()
    expected = tree_attention_reference(*inputs, rows, SCALE).float()
    assert ((given - expected).abs() / expected.abs().clamp(min=1)).max() < TOLERANCE[dtype]


def path_slots(rows: PagedRows, row: int) -> torch.Tensor:
    """Of the row's context, its ancestors and itself."""
    starts = rows.row_starts.tolist()
    sequence = next(s for s in range(len(starts) - 1) if starts[s] <= row < starts[s + 1])
    path = [row]
    while rows.parent_rows[path[0]] >= 0:
        path.insert(0, int(rows.parent_rows[path[0]]))
    return torch.cat([context_slots(rows, sequence), rows.slots[path]])


@pytest.mark.parametrize(("contexts", "forests", "heads", "dtype"), CASES[1:])
def test_a_node_is_the_same_to_the_bit_as_its_token_in_plain_decoding(
    contexts, forests, heads, dtype
):
    rows = paged_rows(contexts, forests)
    query, keys, values = tensors(rows, *heads, dtype)
    given = batch_invariant_attention(query, keys, values, rows, SCALE)
    for row in range(1, len(query), 3):
        slots = path_slots(rows, row)
        plain = paged_rows([len(slots) - 1], [[-1]], seed=row)
        own = torch.cat([context_slots(plain, 0), plain.slots])
        plain_keys, plain_values = torch.zeros_like(keys), torch.zeros_like(values)
        plain_keys[own], plain_values[own] = keys[slots], values[slots]
        alone = batch_invariant_attention(query[[row]], plain_keys, plain_values, plain, SCALE)
        assert torch.equal(alone[0], given[row])


def test_padded_rows_and_sequences_change_nothing_and_give_zero():
    rows = paged_rows([13, 2], [BUSHY, CHAIN])
    query, keys, values = tensors(rows, 4, 2, 16)
    expected = batch_invariant_attention(query, keys, values, rows, SCALE)
    num_rows, extra = len(query), 7

    def longer(array: torch.Tensor, filling: int, size: int = extra) -> torch.Tensor:
        return torch.cat([array, torch.full((size, *array.shape[1:]), filling, dtype=array.dtype)])

    padded = PagedRows(
        longer(rows.slots, -1),
        longer(rows.parent_rows, -1),
        longer(rows.row_starts, num_rows, 2),
        longer(rows.context_lengths, 0, 2),
        torch.nn.functional.pad(longer(rows.block_tables, -1, 2), (0, 300), value=-1),
        BLOCK_SIZE,
    )
    given = batch_invariant_attention(longer(query, 3), keys, values, padded, SCALE)
    assert torch.equal(given[:num_rows], expected)
    assert not given[num_rows:].any()


def test_paths_list_the_ancestors_of_every_row():
    rows = paged_rows([5, 0], [BUSHY, [-1, 0, 1]])
    expected = [path_slots(rows, row) for row in range(len(rows.slots))]
    assert rows.paths.lengths.tolist() == [len(path) for path in expected]
    for row, path in enumerate(expected):
        context = 5 if row < len(BUSHY) else 0
        ancestors = rows.paths.rows[row, : len(path) - context].long()
        assert np.array_equal(rows.slots[ancestors], path[context:])
