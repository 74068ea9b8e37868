"""Noise inside a kernel is the noise of the CPU."""

import numpy as np
import pytest
import torch
import triton
import triton.language as tl
from kernel_interpreter import DEVICE

from canopy_kernels.sampling.device_noise import (
    GUMBEL_ERROR,
    gumbel_estimate,
    gumbel_of,
    uniform_of,
    word_at,
    word_tile,
)
from canopy_kernels.sampling.noise import ACCEPT, gumbel_row, uniform

# NumPy, which the interpreter runs on, also computes and warns of what masks leave out.
pytestmark = pytest.mark.filterwarnings("ignore:.*encountered in:RuntimeWarning")

BLOCK = 512


@triton.jit
def _tile_kernel(noise_ptr, seed, position, first, BLOCK: tl.constexpr):  # noqa: N803
    words = word_tile(seed, position.to(tl.int64), first, BLOCK)
    tl.store(noise_ptr + tl.arange(0, BLOCK), gumbel_of(words))


@triton.jit
def _uniforms_kernel(uniforms_ptr, seed, position):
    index = tl.program_id(0)
    word = word_at(seed, position.to(tl.int64), index, 2)
    tl.store(uniforms_ptr + index, uniform_of(word))


@triton.jit
def _estimate_kernel(words_ptr, noise_ptr, estimates_ptr, BLOCK: tl.constexpr):  # noqa: N803
    offsets = tl.arange(0, BLOCK)
    words = tl.load(words_ptr + offsets).to(tl.uint32)
    tl.store(noise_ptr + offsets, gumbel_of(words))
    tl.store(estimates_ptr + offsets, gumbel_estimate(words))


@pytest.mark.parametrize("seed", [0, 1, 2**63 + 12345, 2**64 - 1])
@pytest.mark.parametrize(("position", "first"), [(0, 0), (7, 512), (2**31 + 3, 255_488)])
def test_a_tile_of_noise_is_the_cpu_noise(seed, position, first):
    noise = torch.empty(BLOCK, device=DEVICE)
    signed = int(np.uint64(seed).view(np.int64))
    _tile_kernel[(1,)](noise, signed, position, first, BLOCK)
    np.testing.assert_array_equal(
        noise.cpu().numpy(), gumbel_row(seed, position, first + BLOCK)[first:]
    )


def test_uniforms_are_the_cpu_uniforms():
    uniforms = torch.empty(9, dtype=torch.float64, device=DEVICE)
    _uniforms_kernel[(len(uniforms),)](uniforms, -5, 77)
    expected = [uniform(2**64 - 5, 77, index, ACCEPT) for index in range(len(uniforms))]
    assert uniforms.tolist() == expected


def test_estimates_stay_within_the_stated_error_at_both_ends():
    near_zero, near_one = np.arange(1 << 12), 2**32 - 1 - np.arange(1 << 12)
    steps = np.geomspace(1, 2**31, 1 << 12).astype(np.int64)
    words = np.concatenate([near_zero, near_one, steps, 2**32 - steps])
    noise, estimates = (torch.empty(len(words), device=DEVICE) for _ in range(2))
    _estimate_kernel[(1,)](torch.from_numpy(words).to(DEVICE), noise, estimates, len(words))
    assert torch.isfinite(noise).all()
    assert (noise - estimates).abs().max() < GUMBEL_ERROR.value / 2
