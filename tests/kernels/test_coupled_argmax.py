"""The kernel's draw is the CPU's, token for token, and follows the target's distribution."""

import numpy as np
import pytest
import torch
from kernel_interpreter import DEVICE
from sampling_cases import thresholds_of

from canopy.acceptance.distribution import greedy_token, target_distribution
from canopy.acceptance.rules import noisy_argmax
from canopy.sampling import SamplingParams
from canopy_kernels.sampling.coupled_argmax import coupled_argmax
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
    return coupled_argmax(*on_device).cpu()


def chosen_by_acceptance(
    logits: np.ndarray, seed: int, position: int, params: SamplingParams
) -> int:
    """The token that the CPU's rules decide on for one row."""
    if params.temperature == 0.0:
        return greedy_token(logits)
    return noisy_argmax(target_distribution(logits, params), len(logits), seed, position)


@pytest.mark.parametrize("params", PARAMS, ids=str)
@pytest.mark.parametrize("vocab_size", [5, 4097])
@pytest.mark.parametrize("change", [lambda logits: logits, rounded], ids=["distinct", "tied"])
def test_kernel_and_acceptance_choose_the_same_tokens(params, vocab_size, change):
    generator = torch.Generator().manual_seed(vocab_size)
    logits = change(3 * torch.randn(NUM_ROWS, vocab_size, generator=generator))
    seeds = [0, 1, 2**63, 2**64 - 1, 987654321]
    positions = [0, 1, 5000, 131_071, 12]
    sampling = SamplingParams(**params)
    expected = [
        chosen_by_acceptance(*row, sampling)
        for row in zip(logits.numpy(), seeds, positions, strict=True)
    ]
    thresholds = thresholds_of(logits.to(DEVICE), **{"temperature": 1.0, **params})
    assert launch(logits, thresholds, seeds, positions).tolist() == expected


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_sixteen_bit_logits_of_mixed_rows_are_read_as_they_are(dtype):
    logits = torch.randn(4, 5000, generator=torch.Generator().manual_seed(1)).to(dtype)
    temperatures = torch.tensor([0.0, 1.0, 0.5, 0.0])
    thresholds = row_thresholds(logits, temperatures)
    seeds, positions = [3, 4, 5, 6], [1, 2, 3, 4]
    rows = zip(logits.float().numpy(), seeds, positions, temperatures.tolist(), strict=True)
    expected = [chosen_by_acceptance(*row, SamplingParams(temperature=t)) for *row, t in rows]
    assert launch(logits, thresholds, seeds, positions).tolist() == expected


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
