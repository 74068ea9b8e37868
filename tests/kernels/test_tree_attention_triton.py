"""The Triton-language kernels give each row the attention of its own path."""

import numpy as np
import pytest
import torch
from kernel_interpreter import DEVICE
from paged_cases import BUSHY, CHAIN, SCALE, context_slots, paged_rows, tensors

from canopy_kernels.attention.ancestor_bits import ancestor_bits
from canopy_kernels.attention.paged_rows import PagedRows
from canopy_kernels.attention.split_kv import MAX_SPLITS, MIN_SPLIT
from canopy_kernels.attention.tree_attention import tree_attention_reference
from canopy_kernels.attention.tree_attention_triton import launch_tree_attention

# NumPy, which the interpreter runs on, also computes and warns of what masks leave out.
pytestmark = pytest.mark.filterwarnings("ignore:.*encountered in:RuntimeWarning")

# The interpreter cuts bfloat16 off instead of rounding it.
TOLERANCE = {torch.float32: 2e-5, torch.bfloat16: 2e-2, torch.float16: 1e-2}
RAGGED = ([8, 0, 33, 3], [BUSHY, CHAIN, [-1], [-1, 0]])


def random_tree(num_rows: int) -> list[int]:
    generator = np.random.default_rng(num_rows)
    return [-1, *(int(generator.integers(0, row)) for row in range(1, num_rows))]


def launch(query, keys, values, rows: PagedRows) -> torch.Tensor:
    on_device = PagedRows(
        rows.slots.to(DEVICE),
        rows.parent_rows.to(DEVICE),
        rows.row_starts.to(DEVICE),
        rows.context_lengths.to(DEVICE),
        rows.block_tables.to(DEVICE),
        rows.block_size,
    )
    tensors_on_device = (tensor.to(DEVICE) for tensor in (query, keys, values))
    return launch_tree_attention(*tensors_on_device, on_device, SCALE).cpu()


def error(actual: torch.Tensor, expected: torch.Tensor) -> torch.Tensor:
    """The largest deviation, relative where values exceed 1."""
    difference = (actual.float() - expected.float()).abs()
    return (difference / expected.float().abs().clamp(min=1.0)).max()


@pytest.mark.parametrize(
    ("context_lengths", "forests", "shape", "dtype"),
    [
        ([0], [[-1]], (4, 4, 16), torch.float32),
        ([4], [[-1]], (3, 1, 96), torch.bfloat16),
        (*RAGGED, (9, 3, 64), torch.float32),
        (*RAGGED, (3, 1, 64), torch.bfloat16),
        ([MIN_SPLIT, MIN_SPLIT - 1], [CHAIN, [-1]], (5, 1, 128), torch.float16),
        ([5, 2 * MIN_SPLIT + 70], [[-1, -1, 0, 1, 1], BUSHY], (6, 2, 80), torch.bfloat16),
        ([3], [BUSHY], (2, 1, 256), torch.float16),
        ([17], [random_tree(257)], (1, 1, 16), torch.float16),
        ([MIN_SPLIT * MAX_SPLITS + 9], [[-1, 0, 0]], (1, 1, 16), torch.bfloat16),
        ([2**17], [[-1, 0, 0]], (1, 1, 16), torch.float16),
    ],
    ids=lambda value: str(value).replace(" ", "")[:40],
)
def test_every_row_attends_its_own_path(context_lengths, forests, shape, dtype):
    rows = paged_rows(context_lengths, forests)
    query, keys, values = tensors(rows, *shape, dtype=dtype)
    actual = launch(query, keys, values, rows)
    expected = tree_attention_reference(query, keys, values, rows, SCALE)
    assert actual.dtype == dtype
    assert error(actual, expected) < TOLERANCE[dtype]


def test_every_branch_equals_plain_attention_over_that_branch_alone():
    rows = paged_rows([37], [BUSHY])
    query, keys, values = tensors(rows, 6, 2, 32)
    together = launch(query, keys, values, rows)
    for leaf in set(range(len(BUSHY))) - set(BUSHY):
        branch = [leaf]
        while BUSHY[branch[0]] >= 0:
            branch.insert(0, BUSHY[branch[0]])
        slots = torch.cat((context_slots(rows, 0), rows.slots[branch]))
        visible = torch.ones(len(branch), len(slots), dtype=torch.bool)
        plain = torch.nn.functional.scaled_dot_product_attention(
            query[branch].transpose(0, 1),
            keys[slots].transpose(0, 1),
            values[slots].transpose(0, 1),
            attn_mask=visible.tril(len(slots) - len(branch)),
            scale=SCALE,
            enable_gqa=True,
        ).transpose(0, 1)
        assert error(together[branch], plain) < TOLERANCE[torch.float32]


def test_a_sequence_is_bit_equal_alone_and_in_a_batch():
    together = paged_rows([70, 9, 21], [BUSHY, CHAIN, [-1]])
    query, keys, values = tensors(together, 3, 1, 16)
    batch = launch(query, keys, values, together)
    starts = together.row_starts
    for sequence in range(3):
        first, end = starts[sequence : sequence + 2].tolist()
        parents = together.parent_rows[first:end]
        alone = PagedRows(
            together.slots[first:end],
            torch.where(parents < 0, parents, parents - first),
            starts[sequence : sequence + 2] - first,
            together.context_lengths[sequence : sequence + 1],
            together.block_tables[sequence : sequence + 1],
            together.block_size,
        )
        assert torch.equal(launch(query[first:end], keys, values, alone), batch[first:end])


def test_rows_behind_the_last_sequence_give_zero():
    rows = paged_rows([9], [CHAIN])
    padding = torch.full((3,), -1, dtype=torch.int32)
    padded = PagedRows(
        torch.cat((rows.slots, torch.zeros(3, dtype=torch.int64))),
        torch.cat((rows.parent_rows, padding)),
        rows.row_starts,
        rows.context_lengths,
        rows.block_tables,
        rows.block_size,
    )
    query, keys, values = tensors(padded, 2, 1, 16)
    out = launch(query, keys, values, padded)
    assert torch.equal(out[: len(CHAIN)], launch(query[: len(CHAIN)], keys, values, rows))
    assert not out[len(CHAIN) :].any()


@pytest.mark.parametrize("num_rows", [1, 2, 63, 64, 65, 257])
def test_ancestor_bits_are_the_tree_mask(num_rows):
    forests = [random_tree(num_rows), [-1], list(range(-1, num_rows - 1))]
    rows = paged_rows([0, 0, 0], forests)
    bits = ancestor_bits(rows.parent_rows.to(DEVICE), rows.row_starts.to(DEVICE)).cpu().numpy()
    mask = np.unpackbits(bits.view(np.uint8), axis=1, bitorder="little")
    first = 0
    for parents in forests:
        for row, parent in enumerate(parents):
            expected = np.zeros(mask.shape[1]) if parent < 0 else mask[first + parent].copy()
            expected[row] = 1
            np.testing.assert_array_equal(mask[first + row], expected)
        first += len(parents)
