"""Weights are rounded once: those that lie on a grid of groups keep it."""

import numpy as np
import pytest
from gguf import GGMLQuantizationType, dequantize, quantize

from canopy_kernels.int4.layout import GROUP, dequantize_outputs, unpack_groups
from canopy_kernels.int4.quantize import quantize4, quantize8


def restored(blocks: np.ndarray) -> np.ndarray:
    levels, scales, minima = unpack_groups(blocks)
    groups = levels.reshape(len(levels), -1, GROUP) * scales.astype(np.float32)[..., None]
    return (groups + minima.astype(np.float32)[..., None]).reshape(len(levels), -1)


def weight(num_outputs: int, num_inputs: int) -> np.ndarray:
    rng = np.random.default_rng(num_inputs)
    scale = 10 ** rng.uniform(-3, 0, (num_outputs, 1))
    return (scale * rng.normal(size=(num_outputs, num_inputs))).astype(np.float32)


@pytest.mark.parametrize(
    ("kind", "quantized", "error"),
    [("Q4_1", quantize4, 0.0), ("Q8_0", quantize8, 0.0), ("Q4_0", quantize4, 1e-3)],
)
def test_groups_of_a_file_are_taken_over(kind, quantized, error):
    """The minimum of a Q4_0 group, its scale times 7, is rounded to a half float."""
    form = GGMLQuantizationType[kind]
    stored = dequantize(quantize(weight(32, 256), form), form)
    found = restored(quantized(stored))
    assert np.abs(found - stored).max() <= error * np.abs(stored).max()


def test_four_bits_are_better_than_the_plain_grid_over_the_range():
    original = weight(64, 256)
    groups = original.reshape(64, -1, GROUP)
    lowest, highest = (limit(axis=2, keepdims=True) for limit in (groups.min, groups.max))
    steps = (highest - lowest) / 15
    plain = np.rint((groups - lowest) / steps) * steps + lowest
    error = np.square(restored(quantize4(original)) - original).sum()
    assert error < 0.85 * np.square(plain - groups).sum()


def test_eight_bits_are_off_by_half_a_step():
    original = weight(20, 100)
    padded = np.pad(original, ((0, 0), (0, 28))).reshape(20, -1, GROUP)
    steps = np.abs(padded).max(axis=2, keepdims=True) / 127
    found = restored(quantize8(original))[:20].reshape(padded.shape)
    assert np.all(np.abs(found - padded) <= 0.57 * steps + 1e-7)


@pytest.mark.parametrize("quantized", [quantize4, quantize8])
def test_groups_without_a_range_keep_their_value(quantized):
    original = np.repeat(np.float32([[0.0], [0.25], [-3.0]]), 2 * GROUP, axis=1)
    found = restored(quantized(original))[:3]
    assert np.allclose(found, original, rtol=1e-3, atol=0)


def test_single_outputs_are_restored():
    blocks = quantize8(weight(40, 96))
    outputs = np.array([0, 17, 39, 17])
    assert np.array_equal(dequantize_outputs(blocks, outputs), restored(blocks)[outputs])
