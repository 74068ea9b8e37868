"""The Triton-language kernels give each row the attention of its own path."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from kernel_interpreter import DEVICE
from paged_cases import BUSHY, CHAIN, SCALE, context_slots, paged_rows, tensors

from canopy_kernels.attention.options import PLAIN, AttentionOptions
from canopy_kernels.attention.paged_rows import PagedRows
from canopy_kernels.attention.tree_attention import tree_attention_reference
from canopy_kernels.attention.tree_attention_triton import launch_tree_attention
from canopy_kernels.attention.work_list import MIN_PART

# NumPy, which the interpreter runs on, also computes and warns of what masks leave out.
pytestmark = pytest.mark.filterwarnings("ignore:.*encountered in:RuntimeWarning")

# The interpreter cuts bfloat16 off instead of rounding it.
TOLERANCE = {torch.float32: 2e-5, torch.bfloat16: 2e-2, torch.float16: 1e-2}
LONG = list(range(-1, 99))
RAGGED = ([8, 0, 33, 3], [BUSHY, CHAIN, [-1], [-1, 0]])


def random_tree(num_rows: int) -> list[int]:
    generator = np.random.default_rng(num_rows)
    return [-1, *(int(generator.integers(0, row)) for row in range(1, num_rows))]


def launch(query, keys, values, rows: PagedRows, options: AttentionOptions = PLAIN) -> torch.Tensor:
    on_device = PagedRows(
        rows.slots.to(DEVICE),
        rows.parent_rows.to(DEVICE),
        rows.row_starts.to(DEVICE),
        rows.context_lengths.to(DEVICE),
        rows.block_tables.to(DEVICE),
        rows.block_size,
    )
    tensors_on_device = (tensor.to(DEVICE) for tensor in (query, keys, values))
    if options.sinks is not None:
        options = replace(options, sinks=options.sinks.to(DEVICE))
    return launch_tree_attention(*tensors_on_device, on_device, SCALE, options).cpu()


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
        ([63, 64, 65], [CHAIN, [-1], BUSHY], (5, 1, 128), torch.float16),
        ([5, 5 * MIN_PART + 70], [[-1, -1, 0, 1, 1], BUSHY], (6, 2, 80), torch.bfloat16),
        ([3], [BUSHY], (2, 1, 256), torch.float16),
        ([17], [random_tree(257)], (1, 1, 16), torch.float16),
        ([40, 0], [LONG, [*LONG[:60], 58, 59, 58, 40, 7]], (4, 2, 16), torch.float32),
        ([2**15], [[-1, 0, 0]], (1, 1, 16), torch.float16),
    ],
    ids=lambda value: str(value).replace(" ", "")[:40],
)
@pytest.mark.parametrize("block_size", [16, 64])
def test_every_row_attends_its_own_path(context_lengths, forests, shape, dtype, block_size):
    if block_size == 16 and max(context_lengths) > 2000:
        return  # a few tiles say as much as many
    rows = paged_rows(context_lengths, forests, block_size=block_size)
    query, keys, values = tensors(rows, *shape, dtype=dtype)
    actual = launch(query, keys, values, rows)
    expected = tree_attention_reference(query, keys, values, rows, SCALE)
    assert actual.dtype == dtype
    assert error(actual, expected) < TOLERANCE[dtype]


@pytest.mark.parametrize(
    "options",
    [
        AttentionOptions(window=1),
        AttentionOptions(window=9),
        AttentionOptions(window=100, soft_cap=3.0),
        AttentionOptions(sinks=torch.tensor([1.0, -2.0, 0.5, 3.0])),
        AttentionOptions(window=20, soft_cap=2.0, sinks=torch.tensor([4.0, 0.0, 0.5, -3.0])),
    ],
    ids=["own", "window", "cap", "sinks", "all"],
)
def test_options_are_those_of_the_reference(options):
    contexts = [70, 0, 4 * MIN_PART]
    rows = paged_rows(contexts, [BUSHY, [*range(-1, 40), 38, 41, 3], CHAIN], block_size=64)
    query, keys, values = tensors(rows, 4, 2, 32)
    actual = launch(query, keys, values, rows, options)
    expected = tree_attention_reference(query, keys, values, rows, SCALE, options)
    assert error(actual, expected) < TOLERANCE[torch.float32]


def test_what_lies_in_slots_of_nobody_harms_nobody():
    rows = paged_rows([70], [CHAIN], block_size=64)
    query, keys, values = tensors(rows, 2, 1, 16)
    expected = tree_attention_reference(query, keys, values, rows, SCALE)
    used = torch.zeros(len(keys), dtype=torch.bool)
    used[torch.cat((context_slots(rows, 0), rows.slots))] = True
    keys[~used], values[~used] = torch.nan, torch.inf
    assert error(launch(query, keys, values, rows), expected) < TOLERANCE[torch.float32]


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
