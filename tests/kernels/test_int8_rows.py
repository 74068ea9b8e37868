"""The ops on single rows against torch."""

import numpy as np
import pytest
import torch

from canopy_kernels.int8 import rows as ops

LENGTHS = [1, 7, 48, 576, 1537]


def random_row(length: int, seed: int = 0) -> np.ndarray:
    return 3 * np.random.default_rng(seed).normal(size=length).astype(np.float32)


@pytest.mark.parametrize("length", LENGTHS)
@pytest.mark.parametrize("levels", [127, 11008, 32767])
def test_quantized_rows_are_off_by_half_a_step_at_most(length, levels):
    row, q = random_row(length), np.empty(length, np.int16)
    scale = ops.quantize(row, levels, q)
    assert np.abs(q.astype(int)).max() == levels
    assert np.abs(q * np.float64(scale) - row).max() <= 0.502 * scale


def test_a_row_of_zeros_has_scale_zero():
    q = np.full(9, 5, np.int16)
    assert ops.quantize(np.zeros(9, np.float32), 127, q) == 0
    assert not q.any()


def test_nothing_hides_a_row_that_is_not_a_number():
    row = random_row(33)
    row[20] = np.nan
    assert np.isnan(ops.quantize(row, 127, np.empty(33, np.int16)))


@pytest.mark.parametrize("length", LENGTHS)
def test_rms_norm_is_that_of_torch_also_in_place(length):
    row, weight = random_row(length), random_row(length, 1)
    expected = torch.nn.functional.rms_norm(
        torch.from_numpy(row), (length,), torch.from_numpy(weight), 1e-5
    ).numpy()
    out = np.empty_like(row)
    ops.rms_norm(row, weight, np.float32(1e-5), out)
    np.testing.assert_allclose(out, expected, rtol=1e-5)
    ops.rms_norm(row, weight, np.float32(1e-5), row)
    assert np.array_equal(row, out)


def test_gated_is_silu_times_up_also_far_out():
    gate = np.concatenate((random_row(500), [-1e4, -90, -30, 0, 30, 90, 1e4])).astype(np.float32)
    up, out = random_row(len(gate), 1), np.empty_like(gate)
    ops.gated(gate, up, out)
    exact = torch.nn.functional.silu(torch.from_numpy(gate).double()).numpy() * up
    np.testing.assert_allclose(out, exact, rtol=1e-5, atol=1e-30)


def test_rope_turns_the_halves_of_a_head():
    head, angles = random_row(64), random_row(32, 1)
    cosines, sines = np.tile(np.cos(angles), 2), np.concatenate((-np.sin(angles), np.sin(angles)))
    out = np.empty_like(head)
    ops.rope(head, cosines, sines, out)
    turned = (head[:32] + 1j * head[32:]) * np.exp(1j * angles)
    expected = np.concatenate((turned.real, turned.imag))
    np.testing.assert_allclose(out, expected, atol=1e-5)
