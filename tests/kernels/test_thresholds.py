"""Thresholds found by halving keep the tokens that sorting and the target distribution keep."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from kernel_interpreter import DEVICE

from canopy.acceptance.distribution import target_distribution
from canopy.sampling import SamplingParams
from canopy_kernels.sampling.filters import Filters, row_thresholds
from canopy_kernels.sampling.thresholds import launch_row_thresholds

# NumPy, which the interpreter runs on, also computes and warns of what masks leave out.
pytestmark = pytest.mark.filterwarnings("ignore:.*encountered in:RuntimeWarning")

# Binary fractions, so that sums over ties meet top_p exactly.
FILTERS = st.fixed_dictionaries(
    {
        "temperature": st.sampled_from([0.5, 1.0, 2.0]),
        "top_k": st.integers(0, 8),
        "top_p": st.sampled_from([0.125, 0.25, 0.5, 0.75, 1.0]),
        "min_p": st.sampled_from([0.0, 0.125, 0.5, 1.0]),
    }
)


def kept(logits: torch.Tensor, thresholds: torch.Tensor) -> torch.Tensor:
    """bool [R, V]"""
    temperatures, peaks, floors, last_ids = (column[:, None] for column in thresholds.unbind(1))
    scaled = (logits.float() - peaks) / torch.where(temperatures > 0, temperatures, 1.0)
    ids = torch.arange(logits.shape[1])
    return (scaled > floors) | ((scaled == floors) & (ids <= last_ids))


def launched(logits: torch.Tensor, temperatures: torch.Tensor, filters: Filters) -> torch.Tensor:
    sent = Filters(*(tensor.to(DEVICE) for tensor in vars(filters).values()))
    return launch_row_thresholds(logits.to(DEVICE), temperatures.to(DEVICE), sent).cpu()


@settings(deadline=None, max_examples=20)
@given(filters=FILTERS, levels=st.lists(st.integers(-6, 6), min_size=1, max_size=12))
def test_the_kept_tokens_are_those_of_the_target_distribution(filters, levels):
    logits = torch.tensor(levels, dtype=torch.float32)[None] / 2
    expected = target_distribution(logits[0].numpy(), SamplingParams(**filters))
    columns = Filters(
        torch.tensor([filters["top_k"]], dtype=torch.int32),
        torch.tensor([filters["top_p"]]),
        torch.tensor([filters["min_p"]]),
    )
    thresholds = launched(logits, torch.tensor([filters["temperature"]]), columns)
    assert kept(logits, thresholds)[0].nonzero()[:, 0].tolist() == expected.token_ids.tolist()


def test_rows_of_all_kinds_are_cut_as_by_sorting():
    """Filters of their own at each row, ties, ruled-out tokens, 16-bit logits, several tiles."""
    generator = torch.Generator().manual_seed(3)
    logits = (6 * torch.randn(10, 9000, generator=generator)).bfloat16()
    logits[1, ::2] = -torch.inf
    logits[2] = 1.0
    logits[3], logits[3, 5000] = -torch.inf, 2.0
    temperatures = torch.tensor([0.0, 0.7, 1.0, 1.0, 0.3, 2.0, 1.0, 1.0, 1.0, 0.9])
    filters = Filters(
        torch.tensor([5, 0, 40, 7, 0, 50, 1, 0, 9000, 0], dtype=torch.int32),
        torch.tensor([0.5, 0.9, 0.25, 0.9, 1.0, 0.95, 0.1, 0.001, 1.0, 1.0]),
        torch.tensor([0.0, 0.0, 0.0, 0.1, 0.05, 0.01, 0.0, 0.0, 0.0, 1e-30]),
    )
    thresholds = launched(logits, temperatures, filters)
    expected = row_thresholds(logits, temperatures, filters)
    assert torch.equal(thresholds[:, :2], expected[:, :2])
    sampled = temperatures > 0
    assert torch.equal(kept(logits, thresholds)[sampled], kept(logits, expected)[sampled])


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_a_row_that_cannot_be_sampled_has_no_finite_peak(value):
    logits = torch.full((1, 300), value)
    filters = Filters(
        torch.tensor([5], dtype=torch.int32), torch.tensor([0.5]), torch.tensor([0.1])
    )
    assert not torch.isfinite(launched(logits, torch.ones(1), filters)[0, 1])
