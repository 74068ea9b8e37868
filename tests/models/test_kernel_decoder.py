"""The float decoder over the Triton-language kernels, interpreted, equals its CPU path."""

import numpy as np
import pytest
import torch
from families import write_family

from canopy.kv_cache.float_cache import KVCache
from canopy.kv_cache.triton_cache import MAX_MOVES, TritonKVCache
from canopy.models.decoder import load_decoder
from canopy.models.step_batch import Segment, assemble_step

BLOCK_SIZE = 16
NUM_BLOCKS = 24
TOLERANCE = 1e-4
TOKENS = [int(t) for t in np.random.default_rng(7).integers(0, 97, 40)]
TREE = [-1, 0, 0, 1, 1, 2, 3]  # the anchor follows the context
ACCEPTED = [0, 1, 3, 6]


def steps() -> list[list[Segment]]:
    """Two sequences' contexts, a tree on each, and a token after an accepted path."""
    tables = np.random.default_rng(2).permutation(NUM_BLOCKS).reshape(2, -1).tolist()

    def segment(sequence: int, length: int, start: int, parents: list[int]) -> Segment:
        token_ids = np.array(TOKENS[start : start + len(parents)])
        return Segment(
            length, tables[sequence], token_ids, np.array(parents), np.arange(len(parents))
        )

    chains = [list(range(-1, 9)), list(range(-1, 4))]
    accepted = 10 + len(ACCEPTED)
    return [
        [segment(0, 0, 0, chains[0]), segment(1, 0, 3, chains[1])],
        [segment(0, 10, 20, TREE), segment(1, 5, 28, TREE[:3])],
        [segment(0, accepted, 35, [-1])],
    ]


@pytest.mark.parametrize("family", ["mistral", "qwen3"])
def test_kernels_give_the_logits_and_the_cache_of_the_cpu_path(family, tmp_path):
    write_family(family, tmp_path)
    decoder = load_decoder(tmp_path, "float32", "cpu")
    config = decoder.config
    shape = (config.num_layers, NUM_BLOCKS, BLOCK_SIZE, config.num_kv_heads, config.head_dim)
    caches = [kind(*shape, torch.float32, "cpu") for kind in (KVCache, TritonKVCache)]
    for segments in steps():
        batch = assemble_step(segments, BLOCK_SIZE, "cpu")
        expected, given = (decoder.forward(batch, cache) for cache in caches)
        assert (given - expected).abs().max() < TOLERANCE
        slots = torch.from_numpy(segments[0].slots(BLOCK_SIZE))
        if len(slots) == len(TREE):
            for cache in caches:
                cache.move(slots[ACCEPTED], slots[: len(ACCEPTED)])
    assert caches[0].keys.abs().sum() > 0
    for name in ("keys", "values"):
        ours, theirs = (getattr(cache, name) for cache in caches)
        assert (ours - theirs).abs().max() < TOLERANCE


@pytest.mark.parametrize("num_moves", [0, 3, MAX_MOVES + 1])
def test_any_number_of_slots_can_be_moved(num_moves):
    caches = [kind(1, 160, 4, 1, 16, torch.float32, "cpu") for kind in (KVCache, TritonKVCache)]
    content = torch.randn(caches[0].keys.shape, generator=torch.Generator().manual_seed(0))
    sources = torch.from_numpy(np.random.default_rng(0).permutation(640)[:num_moves])
    for cache in caches:
        cache.keys.copy_(content)
        cache.move(sources, sources.roll(1))
    assert torch.equal(caches[0].keys, caches[1].keys)
    assert num_moves == 0 or not torch.equal(caches[0].keys, content)


def test_every_sequence_moves_its_own_slots():
    caches = [kind(2, 8, 4, 1, 16, torch.float32, "cpu") for kind in (KVCache, TritonKVCache)]
    content = torch.randn(caches[0].keys.shape, generator=torch.Generator().manual_seed(0))
    sources = torch.tensor([[3, 5, 6], [20, -1, -1], [-1, -1, -1]])
    destinations = torch.tensor([[2, 3, 5], [17, -1, -1], [-1, -1, -1]])
    expected = content.clone()
    expected[:, [2, 3, 5, 17]] = content[:, [3, 5, 6, 20]]
    for cache in caches:
        cache.keys.copy_(content)
        cache.move(sources, destinations)
        assert torch.equal(cache.keys, expected)
