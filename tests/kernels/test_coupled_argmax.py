"""The kernel's draw is the CPU's, token for token, and follows the target's distribution."""

import numpy as np
import pytest
import torch
from kernel_interpreter import DEVICE
from sampling_cases import thresholds_of

from canopy.acceptance.distribution import greedy_token, target_distribution
from canopy.acceptance.rules import noisy_argmax
from canopy.sampling import SamplingParams
from canopy_kernels.sampling.coupled_argmax import coupled_argmax_reference, launch_coupled_argmax
from canopy_kernels.sampling.filters import row_thresholds

# NumPy, which the interpreter runs on, also computes and warns of what masks leave out.
pytestmark = pytest.mark.filterwarnings("ignore:.*encountered in:RuntimeWarning")

NUM_ROWS = 5
PARAMS = [
    {},
    {"temperature": 0.0},
    {"temperature": 0.7},
    {"temperature": 1e-3},
    {"top_k": 3},
    {"top_p": 0.75, "temperature": 2.5},
    {"min_p": 0.25, "top_k": 40, "top_p": 0.875},
]


def rounded(logits: torch.Tensor) -> torch.Tensor:
    """Coarse logits: many tokens tie."""
    return (logits * 2).round() / 2


def launch(logits: torch.Tensor, thresholds: torch.Tensor, seeds: list[int], positions: list[int]):
    signed = torch.from_numpy(np.array(seeds, np.uint64).view(np.int64))
    on_device = (
        tensor.to(DEVICE) for tensor in (logits, thresholds, signed, torch.tensor(positions))
    )
    return launch_coupled_argmax(*on_device).cpu()


@pytest.mark.parametrize("params", PARAMS, ids=str)
@pytest.mark.parametrize("vocab_size", [5, 4097])
@pytest.mark.parametrize("change", [lambda logits: logits, rounded], ids=["distinct", "tied"])
def test_kernel_reference_and_acceptance_choose_the_same_tokens(params, vocab_size, change):
    generator = torch.Generator().manual_seed(vocab_size)
    logits = change(3 * torch.randn(NUM_ROWS, vocab_size, generator=generator))
    seeds = [0, 1, 2**63, 2**64 - 1, 987654321]
    positions = [0, 1, 5000, 131_071, 12]
    sampling = SamplingParams(**params)
    expected = []
    for row, seed, position in zip(logits.numpy(), seeds, positions, strict=True):
        if sampling.temperature == 0.0:
            expected.append(greedy_token(row, sampling, 0))
        else:
            target = target_distribution(row, sampling, 0)
            expected.append(noisy_argmax(target, vocab_size, seed, position))
    thresholds = thresholds_of(logits.to(DEVICE), **{"temperature": 1.0, **params})
    assert launch(logits, thresholds, seeds, positions).tolist() == expected
    signed = torch.from_numpy(np.array(seeds, np.uint64).view(np.int64))
    reference = coupled_argmax_reference(logits, thresholds.cpu(), signed, torch.tensor(positions))
    assert reference.tolist() == expected


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_sixteen_bit_logits_of_mixed_rows_are_read_as_they_are(dtype):
    logits = torch.randn(4, 5000, generator=torch.Generator().manual_seed(1)).to(dtype)
    temperatures = torch.tensor([0.0, 1.0, 0.5, 0.0])
    thresholds = row_thresholds(logits, temperatures)
    seeds, positions = [3, 4, 5, 6], [1, 2, 3, 4]
    expected = coupled_argmax_reference(
        logits.float(), thresholds, torch.tensor(seeds), torch.tensor(positions)
    )
    assert torch.equal(launch(logits, thresholds, seeds, positions), expected)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_row_that_cannot_be_sampled_gives_minus_one(temperature):
    logits = torch.zeros(4, 4200)
    logits[0, 7] = torch.nan
    logits[1, 7] = torch.inf
    logits[2] = -torch.inf
    thresholds = row_thresholds(logits, torch.full((4,), temperature))
    token_ids = launch(logits, thresholds, [1, 2, 3, 4], [0, 0, 0, 0])
    assert token_ids[:3].tolist() == [-1, -1, -1]
    assert token_ids[3] >= 0


def test_a_ruled_out_token_is_never_drawn():
    logits = torch.full((8, 300), -torch.inf)
    logits[:, 250] = -1e30
    thresholds = row_thresholds(logits, torch.ones(8))
    assert launch(logits, thresholds, list(range(8)), [0] * 8).tolist() == [250] * 8


def test_draws_follow_the_law_exactly_stated():
    logits = torch.tensor([0.3, -1.0, 1.2, 0.0, -2.0])
    num_draws = 8000
    rows = logits.expand(num_draws, -1)
    thresholds = thresholds_of(rows.to(DEVICE), temperature=0.8, top_k=4).cpu()
    seeds = torch.arange(num_draws)
    drawn = coupled_argmax_reference(rows, thresholds, seeds, torch.full_like(seeds, 17))
    distribution = torch.softmax(torch.where(logits > -2.0, logits, -torch.inf) / 0.8, 0)
    counts = torch.bincount(drawn, minlength=5)
    expected = distribution * num_draws
    assert counts[4] == 0
    assert ((counts - expected)[:4] ** 2 / expected[:4]).sum() < 16.3  # chi-square, 3 dof, 0.1 %
