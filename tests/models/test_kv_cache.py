"""Slots hold what was written, in every layer, also when moves overlap."""

import torch

from canopy.kv_cache.float_cache import KVCache


def numbered_cache() -> KVCache:
    cache = KVCache(2, 4, 4, 1, 3, torch.float32, "cpu")
    for layer in range(2):
        rows = torch.arange(16.0).reshape(16, 1, 1).expand(16, 1, 3) + 100 * layer
        cache.write(layer, torch.arange(16), rows, -rows)
    return cache


def test_a_write_touches_its_own_layer_and_slots_only():
    cache = KVCache(2, 4, 4, 2, 3, torch.float32, "cpu")
    keys, values = torch.randn(2, 2, 3), torch.randn(2, 2, 3)
    cache.write(1, torch.tensor([9, 2]), keys, values)
    assert torch.equal(cache.keys[1, [9, 2]], keys)
    assert torch.equal(cache.values[1, [9, 2]], values)
    assert not cache.keys[0].any()
    assert cache.keys[1].any(dim=(1, 2)).sum() == 2


def test_overlapping_moves_read_before_they_write():
    cache = numbered_cache()
    cache.move(torch.tensor([5, 6, 7, 8]), torch.tensor([4, 5, 8, 7]))
    for layer in range(2):
        expected = torch.arange(16.0) + 100 * layer
        expected[[4, 5, 8, 7]] = expected[[5, 6, 7, 8]].clone()
        assert torch.equal(cache.keys[layer, :, 0, 0], expected)
        assert torch.equal(cache.values[layer, :, 0, 2], -expected)


def test_moving_nothing_changes_nothing():
    cache = numbered_cache()
    before = cache.keys.clone()
    cache.move(torch.zeros(0, dtype=torch.int64), torch.zeros(0, dtype=torch.int64))
    assert torch.equal(cache.keys, before)
