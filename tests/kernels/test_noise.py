"""Noise is one function of its counter, whatever computes it and whatever slice is asked for."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from canopy_kernels.sampling.noise import (
    ACCEPT,
    DRAFT,
    TARGET,
    gumbel,
    gumbel_argmax,
    gumbel_reference,
    gumbel_row,
    philox_reference,
    uniform,
)

SEEDS = st.integers(0, 2**64 - 1)
POSITIONS = st.integers(0, 2**32 - 1)


@pytest.mark.parametrize(
    ("counter", "key", "words"),
    [
        (
            (0, 0, 0, 0),
            (0, 0),
            (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8),
        ),
        (
            (0xFFFFFFFF,) * 4,
            (0xFFFFFFFF,) * 2,
            (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD),
        ),
        (
            (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
            (0xA4093822, 0x299F31D0),
            (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1),
        ),
    ],
)
def test_philox_gives_the_published_known_answers(counter, key, words):
    assert tuple(philox_reference(np.array([counter], np.uint32), key)[0]) == words


@settings(deadline=None)
@given(seed=SEEDS, position=POSITIONS, branch=st.integers(0, 2**32 - 1), stream=st.integers(0, 2))
def test_compiled_noise_equals_the_reference(seed, position, branch, stream):
    token_ids = np.array([0, 1, 2, 3, 4, 49151, 255_999, 262_143])
    expected = gumbel_reference(seed, position, token_ids, stream, branch)
    np.testing.assert_array_equal(gumbel(seed, position, token_ids, stream, branch), expected)


@settings(max_examples=20, deadline=None)
@given(seed=SEEDS, position=POSITIONS, vocab_size=st.integers(1, 3000), data=st.data())
def test_a_slice_of_the_row_is_what_the_slice_gives(seed, position, vocab_size, data):
    row = gumbel_row(seed, position, vocab_size)
    token_ids = np.array(data.draw(st.lists(st.integers(0, vocab_size - 1), max_size=20)), np.int32)
    assert row.shape == (vocab_size,)
    np.testing.assert_array_equal(gumbel(seed, position, token_ids), row[token_ids])


@settings(deadline=None)
@given(seed=SEEDS, position=POSITIONS, index=st.integers(0, 1000))
def test_uniform_and_gumbel_read_the_same_word(seed, position, index):
    number = uniform(seed, position, index, DRAFT, branch=7)
    assert 0.0 < number < 1.0
    noise = gumbel(seed, position, np.array([index]), DRAFT, branch=7)[0]
    assert noise == np.float32(-np.log(-np.log(number)))


def test_streams_branches_positions_and_seeds_are_independent():
    token_ids = np.arange(20_000)
    rows = [gumbel(5, 9, token_ids, stream) for stream in (TARGET, DRAFT, ACCEPT)]
    rows += [gumbel(5, 9, token_ids, DRAFT, branch=1), gumbel(5, 10, token_ids)]
    rows += [gumbel(6, 9, token_ids), gumbel(5 + (1 << 32), 9, token_ids)]
    correlation = np.corrcoef(rows) - np.eye(len(rows))
    assert np.abs(correlation).max() < 5 / np.sqrt(len(token_ids))


def test_noise_follows_the_gumbel_law():
    noise = np.sort(gumbel_row(3, 4, 200_000).astype(np.float64))
    distribution = np.exp(-np.exp(-noise))
    distance = np.abs(distribution - (np.arange(len(noise)) + 0.5) / len(noise)).max()
    assert distance < 1.95 / np.sqrt(len(noise))  # Kolmogorov-Smirnov, 0.1 %


@settings(max_examples=40, deadline=None)
@given(
    seed=SEEDS,
    position=POSITIONS,
    vocab_size=st.integers(1, 5000),
    scale=st.sampled_from([0.0, 0.5, 4.0, 1e6]),
)
def test_the_bounded_argmax_finds_the_argmax(seed, position, vocab_size, scale):
    logits = np.random.default_rng(vocab_size).normal(0, 1, vocab_size) * scale
    logits[1::7] = -np.inf
    logits = logits.astype(np.float32)
    expected = np.argmax(logits.astype(np.float64) + gumbel_row(seed, position, vocab_size))
    assert gumbel_argmax(logits, seed, position) == expected


def test_the_bounded_argmax_draws_by_softmax():
    logits = np.log(np.array([0.1, 0.2, 0.3, 0.4], np.float32))
    counts = np.bincount([gumbel_argmax(logits, seed, 7) for seed in range(8000)], minlength=4)
    expected = 8000 * np.exp(logits.astype(np.float64))
    assert np.sum((counts - expected) ** 2 / expected) < 21.1  # 3 degrees of freedom, 1e-4
