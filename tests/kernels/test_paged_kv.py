"""Rows are copied exactly, whatever overlaps, and nothing else is touched."""

import pytest
import torch
from kernel_interpreter import DEVICE

from canopy_kernels.attention.paged_kv import (
    commit_kv,
    commit_kv_reference,
    write_kv,
    write_kv_reference,
)

DTYPES = [torch.float32, torch.bfloat16, torch.float16]


def random_cache(shape: tuple[int, ...], dtype: torch.dtype) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(len(shape))
    return [torch.randn(shape, generator=generator).to(dtype).to(DEVICE) for _ in range(2)]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(("heads", "head_dim"), [(1, 1), (3, 64), (5, 257)])
def test_written_rows_lie_in_their_slots(dtype, heads, head_dim):
    cache = random_cache((20, heads, head_dim), dtype)
    expected = [tensor.clone() for tensor in cache]
    # Keys and values are slices of one projection, as in a fused layer.
    projected = torch.cat(random_cache((4, heads, head_dim), dtype), dim=1)
    new = projected.split(heads, dim=1)
    slots = torch.tensor([17, -1, 0, 6], device=DEVICE)
    write_kv(*cache, slots, *new)
    write_kv_reference(*expected, slots, *new)
    for actual, wanted in zip(cache, expected, strict=True):
        assert torch.equal(actual, wanted)


@pytest.mark.parametrize(
    "moves",
    [
        [[]],
        [[(4, 4)]],
        [[(5, 4), (7, 5), (12, 6)], [(30, 29)], []],
        [[(4, 5), (5, 4)], [(10, 11), (11, 12), (12, 10)]],
        [[(slot + 64, slot) for slot in range(64)]],
    ],
    ids=["none", "in place", "ragged paths", "swaps", "deep path"],
)
@pytest.mark.parametrize(("heads", "head_dim"), [(3, 64), (1, 80)])
def test_commit_reads_all_rows_before_it_writes(moves, heads, head_dim):
    cache = random_cache((3, 128, heads, head_dim), torch.bfloat16)
    expected = [tensor.clone() for tensor in cache]
    width = max(len(of_sequence) for of_sequence in moves)
    table = torch.full((2, len(moves), width), -1, dtype=torch.int64)
    for sequence, of_sequence in enumerate(moves):
        for index, move in enumerate(of_sequence):
            table[:, sequence, index] = torch.tensor(move)
    sources, destinations = table.to(DEVICE)
    commit_kv(*cache, sources, destinations)
    commit_kv_reference(*expected, sources, destinations)
    for actual, wanted in zip(cache, expected, strict=True):
        assert torch.equal(actual, wanted)
