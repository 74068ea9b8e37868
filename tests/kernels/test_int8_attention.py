"""Attention over the int8 cache against the reference on what the cache holds."""

import numpy as np
import pytest
import torch

from canopy_kernels.attention.tree_attention import PagedRows, tree_attention_reference
from canopy_kernels.int8.attention import (
    Queries,
    attend_partition,
    new_queries,
    new_scratch,
    prefetch_partition,
    put_query,
)
from canopy_kernels.int8.kv_cache import (
    GROUP,
    Int8KeyValues,
    alloc_levels,
    layer_of,
    move,
    new_key_values,
    put_key,
    put_value,
)
from canopy_kernels.int8.layout import BLOCK
from canopy_kernels.int8.work_items import most_groups

CHAIN = [-1, 0, 1, 2, 3, 4, 5]
BUSHY = [-1, 0, 0, 1, 1, 2, 3, 3, 4, 6]
# Query heads, KV heads, head_dim; the last two need two and three pieces of matrix tiles.
SHAPES = [(4, 4, 16), (9, 3, 64), (7, 1, 20), (14, 2, 24), (4, 2, 100), (2, 1, 136)]
CASES = [
    ([0], [[-1]]),
    ([16], [[-1]]),
    ([7], [CHAIN]),
    ([31, 0, 130, 3], [BUSHY, CHAIN, [-1], [-1, 0]]),
    ([40, 300], [[-1, -1, 0, 1, 1], BUSHY]),
]


def paged_rows(context_lengths: list[int], forests: list[list[int]], block_size: int) -> PagedRows:
    """Sequences over shuffled blocks; a forest lists local parents."""
    sizes = [len(parents) for parents in forests]
    starts = np.concatenate(([0], np.cumsum(sizes)))
    needed = [-(-(c + n) // block_size) for c, n in zip(context_lengths, sizes, strict=True)]
    blocks = np.random.default_rng(0).permutation(sum(needed) + 3)
    tables = np.full((len(sizes), max(needed)), -1, np.int32)
    slots, parent_rows = [], []
    for s, (context, parents) in enumerate(zip(context_lengths, forests, strict=True)):
        tables[s, : needed[s]], blocks = blocks[: needed[s]], blocks[needed[s] :]
        logical = context + np.arange(len(parents))
        slots.append(tables[s, logical // block_size] * block_size + logical % block_size)
        parent_rows += [p if p < 0 else p + int(starts[s]) for p in parents]
    return PagedRows(
        torch.from_numpy(np.concatenate(slots).astype(np.int64)),
        torch.tensor(parent_rows, dtype=torch.int32),
        torch.from_numpy(starts.astype(np.int32)),
        torch.tensor(context_lengths, dtype=torch.int32),
        torch.from_numpy(tables),
        block_size,
    )


def filled_cache(num_slots: int, num_kv_heads: int, head_dim: int) -> Int8KeyValues:
    """One layer in which every slot was written."""
    rng, levels = np.random.default_rng(num_slots), alloc_levels(head_dim)
    cache = layer_of.py_func(new_key_values(1, num_slots // GROUP, num_kv_heads, head_dim), 0)
    for slot in range(num_slots):
        for head in range(num_kv_heads):
            key, value = (2 * rng.normal(size=(2, head_dim))).astype(np.float32)
            put_key(key, cache, slot, head, levels)
            put_value(value, cache, slot, head, levels)
    return cache


def restored(cache: Int8KeyValues, head_dim: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Keys and values by slot, float32 [num_slots, K, D]."""
    key_scales, value_scales = (
        scales.transpose(1, 2, 0)[..., None] for scales in (cache.key_scales, cache.value_scales)
    )
    keys = cache.keys.transpose(1, 3, 0, 2, 4) * key_scales[..., None]
    values = cache.values.transpose(1, 3, 5, 0, 2, 4)  # [G, 4, 4, K, ...]
    values = values.reshape(*value_scales.shape[:3], -1) * value_scales
    return tuple(
        torch.from_numpy(array.reshape(-1, array.shape[2], array[0, 0, 0].size)[..., :head_dim])
        for array in (keys, values)
    )


def queries_of(query: np.ndarray) -> Queries:
    num_rows, num_heads, _ = query.shape
    queries = new_queries(*query.shape)
    for row in range(num_rows):
        for head in range(num_heads):
            put_query(query[row, head], queries, row, head)
    return queries


def attend(
    query: np.ndarray, cache: Int8KeyValues, rows: PagedRows, num_workers: int = 1
) -> np.ndarray:
    num_rows, num_heads, head_dim = query.shape
    out = np.full((num_rows, num_heads, cache.values.shape[2] * BLOCK), np.nan, np.float32)
    num_groups = most_groups(rows.block_tables.shape[1], rows.block_size, num_rows)
    num_members = num_heads // len(cache.keys)
    scratch = new_scratch(num_workers, num_members, num_groups, head_dim)
    queries = queries_of(query)
    for worker in range(num_workers):
        prefetch_partition(queries, cache, rows.arrays, scratch, worker, num_workers)
        attend_partition(queries, cache, rows.arrays, scratch, out, worker, num_workers)
    return out[..., :head_dim]


@pytest.mark.parametrize("block_size", [16, 48])
@pytest.mark.parametrize(("context_lengths", "forests"), CASES)
def test_every_row_attends_its_own_path(context_lengths, forests, block_size):
    rows = paged_rows(context_lengths, forests, block_size)
    num_slots = (int(rows.block_tables.max()) + 4) * block_size
    for heads, kv_heads, head_dim in SHAPES:
        cache = filled_cache(num_slots, kv_heads, head_dim)
        query = np.random.default_rng(1).normal(size=(len(rows.slots), heads, head_dim))
        query = 2 * query.astype(np.float32)
        expected = tree_attention_reference(
            torch.from_numpy(query), *restored(cache, head_dim), rows, head_dim**-0.5
        )
        actual = attend(query, cache, rows)
        assert np.abs(actual - expected.numpy()).max() < 2e-3
        assert np.array_equal(attend(query, cache, rows, num_workers=3), actual)


def test_a_step_of_many_rows_gives_each_the_bits_of_its_own_step():
    rows = paged_rows([40, 23], [CHAIN, CHAIN], 16)
    cache = filled_cache((int(rows.block_tables.max()) + 1) * 16, 3, 64)
    query = np.random.default_rng(2).normal(size=(14, 9, 64)).astype(np.float32)
    together = attend(query, cache, rows)
    for row in range(14):
        sequence, depth = divmod(row, 7)
        context = torch.tensor([[40, 23][sequence] + depth], dtype=torch.int32)
        alone = PagedRows(
            rows.slots[row : row + 1],
            torch.tensor([-1], dtype=torch.int32),
            torch.tensor([0, 1], dtype=torch.int32),
            context,
            rows.block_tables[sequence : sequence + 1],
            16,
        )
        assert np.array_equal(attend(query[row : row + 1], cache, alone)[0], together[row])


def test_large_scores_neither_overflow_nor_lose_the_winner():
    rows = paged_rows([20], [[-1]], 16)
    cache = filled_cache(96, 1, 16)
    query = 1e4 * np.random.default_rng(3).normal(size=(1, 2, 16)).astype(np.float32)
    expected = tree_attention_reference(torch.from_numpy(query), *restored(cache, 16), rows, 0.25)
    assert np.abs(attend(query, cache, rows) - expected.numpy()).max() < 1e-3


def test_stored_keys_and_values_are_off_by_half_a_step_at_most():
    rng = np.random.default_rng(4)
    cache = layer_of.py_func(new_key_values(1, 3, 2, 24), 0)
    key, value = (3 * rng.normal(size=(2, 24))).astype(np.float32)
    put_key(key, cache, 37, 1, alloc_levels(24))
    put_value(value, cache, 37, 1, alloc_levels(24))
    keys, values = restored(cache, 24)
    assert np.abs(keys[37, 1].numpy() - key).max() <= 0.51 * np.abs(key).max() / 127
    assert np.abs(values[37, 1].numpy() - value).max() <= 0.51 * np.abs(value).max() / 127
    keys[37, 1] = values[37, 1] = 0
    assert not keys.any()
    assert not values.any()


def test_overlapping_moves_read_before_they_write():
    cache = new_key_values(2, 4, 3, 20)
    rng = np.random.default_rng(5)
    for array in cache:
        array[:] = rng.integers(-127, 128, array.shape)
    before = [restored(layer_of.py_func(cache, layer), 20) for layer in range(2)]
    sources, destinations = np.array([5, 17, 18, 40]), np.array([17, 18, 40, 2])
    move(cache, sources, destinations)
    for layer in range(2):
        after = restored(layer_of.py_func(cache, layer), 20)
        for old, new in zip(before[layer], after, strict=True):
            expected = old.clone()
            expected[destinations] = old[sources]
            assert torch.equal(new, expected)
