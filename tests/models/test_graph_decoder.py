"""Padded steps over memory that is used again and again, on the interpreted kernels.

What is captured on a GPU is run here, step by step: the same step over the same memory.
"""

import numpy as np
import pytest
import torch
from families import write_family
from test_kernel_decoder import BLOCK_SIZE, NUM_BLOCKS, steps

from canopy.kv_cache.triton_cache import TritonKVCache
from canopy.models.decoder import load_decoder
from canopy.models.llama.buckets import Bucket, Buckets
from canopy.models.llama.float_decoder import FloatDecoder
from canopy.models.llama.graph_decoder import GraphDecoder
from canopy.models.step_batch import AuxHiddenStates, Segment, StepBatch, assemble_step

TOLERANCE = 1e-4  # relative to the largest; torch sums matrix products in another order


class Recorder:
    """A capture that runs nothing before its replay, and counts replays."""

    def __init__(self) -> None:
        self.num_captured = 0
        self.num_replayed = 0

    def __call__(self, step):
        self.num_captured += 1

        def replay() -> None:
            self.num_replayed += 1
            step()

        return replay


@pytest.fixture
def decoder(tmp_path, monkeypatch) -> FloatDecoder:
    """A tiny model over the kernels."""
    write_family("qwen3", tmp_path)
    decoder = load_decoder(tmp_path, "float32", "cpu")
    config = decoder.config
    shape = config.num_layers, NUM_BLOCKS, BLOCK_SIZE, config.num_kv_heads, config.head_dim
    monkeypatch.setattr(
        decoder, "new_cache", lambda *_: TritonKVCache(*shape, torch.float32, "cpu")
    )
    return decoder


def assert_near(given: torch.Tensor, expected: torch.Tensor) -> None:
    assert (given - expected).abs().max() < TOLERANCE * expected.abs().max()


def test_replayed_steps_equal_plain_ones_and_leave_the_same_cache(decoder):
    """Sizes fall and rise, so every step finds what another one has left in its memory."""
    recorder = Recorder()
    graphs = GraphDecoder(decoder, 16, 2, (0, 1), lambda: recorder)
    caches = decoder.new_cache(), graphs.new_cache(NUM_BLOCKS, BLOCK_SIZE)
    small = [Segment(0, [20], np.array([5]), np.array([-1]), np.array([0]))]
    given = []
    for segments in [*steps()[:2], small, steps()[2]]:
        batch = assemble_step(segments, BLOCK_SIZE)
        aux_hidden_states = [
            AuxHiddenStates.of((0, 1), batch, decoder.config.hidden_size) for _ in caches
        ]
        expected = decoder.forward(batch, caches[0], aux_hidden_states[0])
        given.append(graphs.forward(batch, caches[1], aux_hidden_states[1]))
        assert given[-1].shape == expected.shape
        assert_near(given[-1], expected)
        assert_near(aux_hidden_states[1].states, aux_hidden_states[0].states)
    assert recorder.num_captured == len(Buckets(16, 2, 1).all)
    assert recorder.num_replayed == len(given)
    assert len({tensor.data_ptr() for tensor in given}) == 1
    for name in ("keys", "values"):
        plain, padded = (getattr(cache, name) for cache in caches)
        assert_near(padded, plain)
        assert torch.equal(padded == 0, plain == 0)  # padding wrote nowhere


def test_steps_beyond_the_largest_size_are_computed_as_they_are(decoder):
    recorder = Recorder()
    graphs = GraphDecoder(decoder, 8, 1, (), lambda: recorder)
    cache = graphs.new_cache(NUM_BLOCKS, BLOCK_SIZE)
    batch = assemble_step(steps()[0], BLOCK_SIZE)
    expected = decoder.forward(batch, decoder.new_cache())
    assert_near(graphs.forward(batch, cache), expected)
    assert recorder.num_replayed == 0


def test_a_step_of_padding_writes_nothing(decoder):
    cache = decoder.new_cache()
    decoder.forward(Buckets(8, 4, NUM_BLOCKS).empty(Bucket(8, 4)), cache)
    assert not cache.keys.any()
    assert not cache.values.any()


def test_an_old_cache_is_refused_since_no_graph_knows_it(decoder):
    graphs = GraphDecoder(decoder, 8, 1, (), Recorder)
    old = graphs.new_cache(NUM_BLOCKS, BLOCK_SIZE)
    graphs.new_cache(NUM_BLOCKS, BLOCK_SIZE)
    segment = Segment(0, [0], np.array([5]), np.array([-1]), np.array([0]))
    with pytest.raises(ValueError, match="place"):
        graphs.forward(assemble_step([segment], BLOCK_SIZE), old)


@pytest.mark.parametrize("max_rows", [1, 7, 64, 256])
@pytest.mark.parametrize("max_sequences", [1, 5, 32])
def test_every_step_within_the_limits_has_a_captured_size(max_rows, max_sequences):
    buckets = Buckets(max_rows, max_sequences, 9)
    sizes = buckets.all
    assert len(set(sizes)) == len(sizes) <= 13 * 6
    for num_rows in range(1, max_rows + 1):
        for num_sequences in range(1, min(max_sequences, num_rows) + 1):
            bucket = buckets.bucket_of(step_of(num_rows, num_sequences))
            assert bucket in sizes
            assert bucket.num_rows >= num_rows
            assert bucket.num_sequences >= num_sequences
    assert buckets.bucket_of(step_of(max_rows + 1, 1)) is None
    assert buckets.bucket_of(step_of(max_rows, max_sequences + 1)) is None
    assert buckets.bucket_of(step_of(1, 1, num_blocks=10)) is None


def step_of(num_rows: int, num_sequences: int, num_blocks: int = 9) -> StepBatch:
    """The shape of a step alone."""
    rows, sequences = torch.zeros(num_rows), torch.zeros(num_sequences)
    tables = torch.zeros((num_sequences, num_blocks))
    return StepBatch(rows, rows, rows, rows, sequences, sequences, tables, rows)
