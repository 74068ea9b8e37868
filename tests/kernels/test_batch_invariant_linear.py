"""Linears and norms whose rows do not know each other."""

import pytest
import torch
from kernel_interpreter import DEVICE

from canopy_kernels.dense.batch_invariant_linear import (
    LinearTiling,
    batch_invariant_linear,
    batch_invariant_linear_reference,
    split_of,
)
from canopy_kernels.dense.rms_norm import rms_norm, rms_norm_reference

TOLERANCE = {torch.float32: 1e-5, torch.bfloat16: 1e-2, torch.float16: 1e-2}


def drawn(*shape: int, dtype: torch.dtype = torch.float32, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=generator).to(DEVICE, dtype)


def error(given: torch.Tensor, expected: torch.Tensor) -> float:
    """The largest, relative above 1."""
    difference = (given.float() - expected.float()).abs() / expected.float().abs().clamp(min=1.0)
    return float(difference.max())


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("shape", [(1, 40, 33), (5, 600, 97), (70, 1100, 64), (3, 513, 1)])
@pytest.mark.parametrize("has_bias", [True, False])
def test_the_linear_equals_its_reference(dtype, shape, has_bias):
    num_rows, inner, num_outs = shape
    weight = drawn(num_outs, inner, dtype=dtype, seed=1) * inner**-0.5
    bias = drawn(num_outs, dtype=dtype, seed=2) if has_bias else None
    rows = drawn(num_rows, inner, dtype=dtype)
    given = batch_invariant_linear(rows, weight, bias)
    assert given.dtype == dtype
    assert error(given, batch_invariant_linear_reference(rows, weight, bias)) < TOLERANCE[dtype]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_row_is_the_same_to_the_bit_alone_and_in_any_batch(dtype):
    weight, bias = drawn(40, 700, dtype=dtype, seed=1), drawn(40, dtype=dtype, seed=2)
    rows = drawn(67, 700, dtype=dtype)
    together = batch_invariant_linear(rows, weight, bias)
    for row in (0, 15, 64):
        assert torch.equal(
            batch_invariant_linear(rows[row : row + 1], weight, bias)[0], together[row]
        )
    order = torch.randperm(67, generator=torch.Generator().manual_seed(3)).to(DEVICE)
    assert torch.equal(batch_invariant_linear(rows[order], weight, bias), together[order])
    padded = torch.cat([rows[:5], torch.full_like(rows[:9], 1e4)])
    assert torch.equal(batch_invariant_linear(padded, weight, bias)[:5], together[:5])


def test_rows_need_not_be_contiguous_and_may_be_missing():
    wide, weight = drawn(4, 100), drawn(6, 50, seed=1)
    rows = wide[:, 50:]
    given = batch_invariant_linear(rows, weight)
    assert torch.equal(given, batch_invariant_linear(rows.contiguous(), weight))
    assert batch_invariant_linear(rows[:0], weight).shape == (0, 6)


@pytest.mark.parametrize("num_outs", [64, 2048, 6144, 128256])
@pytest.mark.parametrize("inner", [64, 2048, 8192, 14336])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_splits_are_whole_tiles_and_no_more_than_pay(num_outs, inner, dtype):
    tiling = LinearTiling.of(dtype)
    split = split_of(num_outs, inner, tiling)
    assert split % tiling.inner == 0
    assert split >= min(inner, 448)
    assert -(-inner // split) * -(-num_outs // tiling.outs) <= 2 * 256 + num_outs // tiling.outs


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("shape", [(1, 1, 64), (5, 1, 72), (12, 4, 24)])
def test_the_norm_equals_its_reference_in_any_company(dtype, shape):
    num_rows, num_weights, width = shape
    x, weight = drawn(num_rows, width, dtype=dtype) * 3, drawn(num_weights, width, dtype=dtype)
    given = rms_norm(x, weight, 1e-5)
    tolerance = 1e-6 if dtype == torch.float32 else 2**-6
    assert error(given, rms_norm_reference(x, weight, 1e-5)) < tolerance
    first = rms_norm(x[:num_weights], weight, 1e-5)
    assert torch.equal(first, given[:num_weights])
    assert rms_norm(x[:0], weight, 1e-5).shape == (0, width)
