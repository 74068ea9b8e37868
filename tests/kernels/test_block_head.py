"""Laws out of a block drafter's rows, against their formulas in NumPy."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from canopy_kernels.block_head import best_of, candidates, scores_of, state_of


def log_sum(values):
    return np.logaddexp.reduce(np.asarray(values, np.float64)) if len(values) else -np.inf


@given(
    st.integers(0, 300),
    st.integers(1, 90),
    st.integers(1, 90),
    st.integers(-1, 89),
    st.sampled_from([0.0, 0.3, 3.0, 30.0]),
    st.sampled_from([1.0, 0.6]),
)
def test_candidates_are_the_best_and_the_tail_is_the_rest(seed, size, num, wanted, spread, heat):
    num, wanted = min(num, size), min(wanted, size - 1)
    logits = np.random.default_rng(seed).normal(scale=spread, size=size).astype(np.float32)
    columns, tail = candidates(logits, heat, num, wanted)
    assert np.all(np.diff(columns) > 0)
    assert len(columns) == num
    assert wanted < 0 or wanted in columns
    others = np.delete(logits, columns)
    chosen = logits[columns[columns != wanted]]
    if len(others) and len(chosen) and others.max() > logits.max() - 31.0:  # beyond, all are one
        assert chosen.min() >= others.max() - 1.0 / 16.0 - 1e-3
    expected = log_sum(others / heat)
    if expected - log_sum(logits / heat) > -15.0:
        assert tail == pytest.approx(expected, abs=1e-3)
    else:
        assert tail < log_sum(logits / heat) - 13.0


@given(st.integers(0, 300), st.integers(1, 60), st.integers(1, 80), st.booleans(), st.booleans())
def test_the_best_of_a_law_with_its_entropy(seed, size, num, has_tail, is_coarse):
    generator = np.random.default_rng(seed)
    scores = generator.normal(scale=3.0, size=size).astype(np.float32)
    scores = np.round(scores) if is_coarse else scores  # with equal ones
    tail = np.float32(generator.normal()) if has_tail else np.float32(-np.inf)
    places, log_probs, entropy = best_of(scores, tail, num)
    everything = np.append(scores, tail).astype(np.float64)
    logs = everything - log_sum(everything)
    order = np.argsort(-scores, kind="stable")[:num]
    np.testing.assert_array_equal(places, order)
    np.testing.assert_allclose(log_probs, logs[order], atol=2e-5)
    kept = logs[np.isfinite(logs)]
    assert entropy == pytest.approx(-(np.exp(kept) @ kept) / np.log(2.0), abs=1e-4)


@pytest.mark.parametrize("rank", [1, 8, 128])
def test_scores_and_states_follow_their_formulas(rank):
    generator = np.random.default_rng(rank)

    def floats(*shape):
        return generator.normal(size=shape).astype(np.float32) / np.sqrt(rank)

    out, step, code, row_code, before = (
        *(floats(30, rank), floats(rank, rank)),
        *(floats(rank), floats(rank), floats(rank)),
    )
    state = state_of(code, row_code, step, before)
    np.testing.assert_allclose(state, np.tanh(code + row_code + step @ before), atol=1e-5)
    first = state_of(code, row_code, step, np.zeros(0, np.float32))
    np.testing.assert_allclose(first, np.tanh(code + row_code), atol=1e-6)
    logits, columns = floats(30), np.array([0, 7, 29], np.int32)
    expected = (logits[columns] + out[columns] @ state) / 0.7
    np.testing.assert_allclose(
        scores_of(logits, columns, out, state, 0.7), expected, rtol=1e-4, atol=1e-5
    )
