"""A floor and an id state what the filters keep, exactly."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sampling_cases import thresholds_of, to_device

from canopy.acceptance.distribution import target_distribution
from canopy.sampling import SamplingParams
from canopy_kernels.sampling.block_sums import row_masses

# Binary fractions, so that sums over ties meet top_p exactly.
FILTERS = st.fixed_dictionaries(
    {
        "top_k": st.integers(0, 9),
        "top_p": st.sampled_from([0.25, 0.5, 0.75, 1.0]),
        "min_p": st.sampled_from([0.0, 0.125, 0.5, 1.0]),
        "temperature": st.sampled_from([0.5, 1.0, 2.0]),
    }
)


@settings(deadline=None, max_examples=200)
@given(filters=FILTERS, levels=st.lists(st.integers(-6, 6), min_size=1, max_size=12))
def test_the_kept_tokens_are_those_of_the_target_distribution(filters, levels):
    logits = torch.tensor(levels, dtype=torch.float32)[None] / 2
    expected = target_distribution(logits[0].numpy(), SamplingParams(**filters))
    thresholds = thresholds_of(to_device(logits.numpy()), **filters)[0].cpu()
    temperature, peak, floor, last_id = thresholds
    scaled = (logits[0] - peak) / temperature
    is_head = (scaled > floor) | ((scaled == floor) & (torch.arange(len(scaled)) <= last_id))
    kept = is_head.nonzero()[:, 0]
    assert kept.tolist() == expected.token_ids.tolist()
    np.testing.assert_array_equal(scaled[kept].numpy(), expected.logits)


@pytest.mark.parametrize("vocab_size", [1, 1024, 2500])
def test_part_masses_add_up_to_the_weights_of_the_target(vocab_size):
    logits = torch.randn(2, vocab_size, generator=torch.Generator().manual_seed(0))
    params = {"temperature": 0.5, "top_p": 0.75}
    thresholds = thresholds_of(to_device(logits.numpy()), **params)
    masses = row_masses(to_device(logits.numpy()), thresholds).cpu()
    for row, part_masses in zip(logits.numpy(), masses, strict=True):
        target = target_distribution(row, SamplingParams(**params))
        assert part_masses.sum().item() == pytest.approx(target.weights(vocab_size).sum(), 1e-6)
