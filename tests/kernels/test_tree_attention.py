"""A row's attention depends on its own path alone, to the bit."""

import pytest
import torch
from paged_cases import (
    BLOCK_SIZE,
    BUSHY,
    CHAIN,
    SCALE,
    TOLERANCE,
    context_slots,
    paged_rows,
    tensors,
)

from canopy_kernels.attention import tree_attention as op
from canopy_kernels.attention.paged_rows import PagedRows
from canopy_kernels.attention.tree_attention import tree_attention, tree_attention_reference


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize(
    ("context_lengths", "forests"),
    [
        ([0], [[-1]]),
        ([4], [[-1]]),
        ([7], [CHAIN]),
        ([8, 0, 33, 3], [BUSHY, CHAIN, [-1], [-1, 0]]),
        ([5, 300], [[-1, -1, 0, 1, 1], BUSHY]),
    ],
)
def test_every_row_attends_its_own_path(dtype, context_lengths, forests):
    rows = paged_rows(context_lengths, forests)
    for shape in ((4, 4, 16), (9, 3, 64), (7, 1, 20)):
        query, keys, values = tensors(rows, *shape, dtype=dtype)
        actual = tree_attention(query, keys, values, rows, SCALE)
        expected = tree_attention_reference(query, keys, values, rows, SCALE)
        assert actual.dtype == dtype
        assert (actual.float() - expected.float()).abs().max() < TOLERANCE[dtype]


def test_the_reference_agrees_with_torch_on_plain_causal_attention():
    rows = paged_rows([0], [CHAIN])
    query, keys, values = tensors(rows, 4, 2, 16)
    expected = torch.nn.functional.scaled_dot_product_attention(
        query.transpose(0, 1),
        keys[rows.slots].transpose(0, 1),
        values[rows.slots].transpose(0, 1),
        is_causal=True,
        scale=SCALE,
        enable_gqa=True,
    ).transpose(0, 1)
    actual = tree_attention_reference(query, keys, values, rows, SCALE)
    assert (actual - expected).abs().max() < 1e-5


def test_a_node_computed_with_its_tree_is_bit_equal_to_the_end_of_its_chain():
    context = 37
    rows = paged_rows([context, 6], [BUSHY, CHAIN])
    query, keys, values = tensors(rows, 9, 3, 64)
    together = tree_attention(query, keys, values, rows, SCALE)
    parents = rows.parent_rows.tolist()
    for node in range(len(BUSHY)):
        path = [node]
        while parents[path[0]] >= 0:
            path.insert(0, parents[path[0]])
        committed = torch.cat((context_slots(rows, 0), rows.slots[path]))
        copied_keys, copied_values = keys[committed], values[committed]
        alone = decoding_row(len(committed))
        lone = tree_attention(query[node : node + 1], copied_keys, copied_values, alone, SCALE)
        assert torch.equal(lone[0], together[node])


def decoding_row(length: int) -> PagedRows:
    """Plain decoding of the last of `length` tokens, which lie one after the other."""
    return PagedRows(
        torch.tensor([length - 1]),
        torch.tensor([-1], dtype=torch.int32),
        torch.tensor([0, 1], dtype=torch.int32),
        torch.tensor([length - 1], dtype=torch.int32),
        torch.arange(-(-length // BLOCK_SIZE), dtype=torch.int32)[None],
        BLOCK_SIZE,
    )


def test_threads_change_no_bit(monkeypatch):
    rows = paged_rows([70, 9], [BUSHY, CHAIN])
    query, keys, values = tensors(rows, 9, 3, 64)
    monkeypatch.setattr(op, "_SERIAL_WORK", 1 << 40)
    alone = tree_attention(query, keys, values, rows, SCALE)
    monkeypatch.setattr(op, "_SERIAL_WORK", 0)
    assert torch.equal(tree_attention(query, keys, values, rows, SCALE), alone)


def test_large_scores_neither_overflow_nor_lose_the_winner():
    rows = paged_rows([5], [[-1]])
    query, keys, values = tensors(rows, 2, 1, 8)
    actual = tree_attention(1e4 * query, keys, values, rows, SCALE)
    expected = tree_attention_reference(1e4 * query, keys, values, rows, SCALE)
    assert (actual - expected).abs().max() < 1e-5
