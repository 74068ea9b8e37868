"""Filters against a slow reference, and against `transformers` where both mean the same."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import (
    MinPLogitsWarper,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
    TypicalLogitsWarper,
)

from canopy.acceptance.distribution import greedy_token, target_distribution
from canopy.sampling import SamplingParams

plain = SamplingParams(temperature=1.0)


def probs_of(logits, params):
    logits = np.asarray(logits, np.float32)
    weights = target_distribution(logits, params).weights(len(logits))
    return weights / weights.sum()


def reference_probs(logits, params):
    """Plain loops over a full sort, float64."""
    scaled = [float(x) / params.temperature for x in logits]
    weights = np.exp(np.array(scaled) - max(scaled))
    kept = [i for i, weight in enumerate(weights) if weight > 0]
    if params.top_k:
        ranked = sorted((weights[i] for i in kept), reverse=True)
        kept = [i for i in kept if weights[i] >= ranked[min(params.top_k, len(kept)) - 1]]
    if params.top_p < 1.0:
        needed = params.top_p * sum(weights[i] for i in kept)
        by_rank, kept, mass = sorted(kept, key=lambda i: (-weights[i], i)), [], 0.0
        for i in by_rank:
            if mass >= needed:
                break
            kept.append(i)
            mass += weights[i]
    kept = [i for i in kept if weights[i] >= params.min_p]
    probs = np.zeros(len(weights))
    probs[kept] = weights[kept]
    return probs / probs.sum()


# Small whole logits make many ties; the odd thresholds fall between the sums they produce.
LOGITS = st.lists(st.integers(-6, 6), min_size=1, max_size=40)
PARAMS = st.builds(
    SamplingParams,
    temperature=st.sampled_from([0.37, 1.0, 2.3]),
    top_k=st.integers(0, 45),
    top_p=st.sampled_from([1.0, 0.98713, 0.77131, 0.31337, 0.01371]),
    min_p=st.sampled_from([0.0, 0.0313, 0.2171, 1.0]),
)


@settings(max_examples=200, deadline=None)
@given(logits=LOGITS, params=PARAMS)
def test_the_filters_agree_with_the_reference(logits, params):
    expected = reference_probs(logits, params)
    np.testing.assert_allclose(probs_of(logits, params), expected, rtol=1e-5, atol=0)


def warped(logits, warpers):
    scores = torch.from_numpy(np.asarray(logits, np.float32))[None]
    for warper in warpers:
        scores = warper(None, scores)
    return torch.softmax(scores[0].double(), -1).numpy()


@pytest.mark.parametrize(
    ("changes", "warpers"),
    [
        ({}, []),
        ({"top_k": 50}, [TopKLogitsWarper(50)]),
        ({"top_p": 0.9}, [TopPLogitsWarper(0.9)]),
        ({"min_p": 0.03}, [MinPLogitsWarper(0.03)]),
        ({"top_k": 30, "top_p": 0.8}, [TopKLogitsWarper(30), TopPLogitsWarper(0.8)]),
        ({"top_k": 5, "min_p": 0.05}, [TopKLogitsWarper(5), MinPLogitsWarper(0.05)]),
        ({"top_p": 0.9, "min_p": 0.1}, [TopPLogitsWarper(0.9), MinPLogitsWarper(0.1)]),
        ({"typical_p": 0.5}, [TypicalLogitsWarper(0.5)]),
        (
            {"top_k": 60, "top_p": 0.95, "min_p": 0.01, "typical_p": 0.8},
            [
                TopKLogitsWarper(60),
                TopPLogitsWarper(0.95),
                MinPLogitsWarper(0.01),
                TypicalLogitsWarper(0.8),
            ],
        ),
    ],
)
def test_the_filters_agree_with_transformers(changes, warpers):
    params = replace(plain, temperature=0.7, **changes)
    for seed in range(5):
        logits = np.random.default_rng(seed).normal(0, 3, 5000).astype(np.float32)
        expected = warped(logits, [TemperatureLogitsWarper(0.7), *warpers])
        np.testing.assert_allclose(probs_of(logits, params), expected, rtol=1e-4, atol=0)


def test_ties_with_the_last_of_top_k_stay_and_top_p_takes_lower_ids_first():
    logits = [1.0, 2.0, 1.0, 0.0, 1.0]
    assert np.flatnonzero(probs_of(logits, replace(plain, top_k=2))).tolist() == [0, 1, 2, 4]
    assert np.flatnonzero(probs_of([0.0] * 8, replace(plain, top_p=0.3))).tolist() == [0, 1, 2]


def test_a_wide_vocabulary_is_filtered_as_a_narrow_one():
    logits = np.random.default_rng(1).normal(0, 4, 60_000).astype(np.float32)
    for params in (replace(plain, top_p=0.99), replace(plain, top_k=700, top_p=0.6)):
        expected = reference_probs(logits.tolist(), params)
        np.testing.assert_allclose(probs_of(logits, params), expected, rtol=1e-5, atol=0)


def test_extreme_temperatures_and_logits_stay_finite():
    for logits in ([3e38, -3e38, 0.0], [1.0, 1.0 - 1e-3, -np.inf], [-1e4, -1e4, -1e4]):
        for temperature in (1e-6, 1e-2, 100.0):
            for top_p in (1.0, 0.5, 1.0 - 2**-53):
                params = replace(plain, temperature=temperature, top_p=top_p)
                probs = probs_of(logits, params)
                assert np.isfinite(probs).all()
                assert probs[0] == probs.max() > 0


def test_equal_logits_give_the_lowest_id():
    assert greedy_token(np.array([1.0, 4.0, 4.0], np.float32)) == 1
