"""Sums of integer products are exact at every shape, at the extremes and on any share."""

import numpy as np
import pytest

from canopy_kernels.int8.gemm import (
    WEIGHT_LEVELS,
    activation_levels,
    int8_linear,
    int8_linear_reference,
    linear_partition,
    packed_rows,
    quantize_weight,
)
from canopy_kernels.int8.layout import (
    BLOCK,
    pack_weight,
    pad_outputs,
    padded_inputs,
    unpack_weight,
)

SHAPES = [
    *[(1, 1, 1), (1, 576, 960), (2, 7, 17), (5, 80, 16), (6, 33, 50), (13, 1536, 48)],
    *[(17, 40, 20), (18, 21, 33), (40, 64, 16)],
]


def operands(rows: int, inputs: int, outputs: int, fill: int | None = None) -> tuple:
    """Random operands; with `fill` every product is as large as can be, and of that sign."""
    rng = np.random.default_rng(rows * inputs + outputs)
    limit = activation_levels(inputs)
    q = rng.integers(-limit, limit + 1, (rows, padded_inputs(inputs))).astype(np.int16)
    levels = rng.integers(-WEIGHT_LEVELS, WEIGHT_LEVELS + 1, (outputs, inputs)).astype(np.int8)
    if fill is not None:
        q[:] = limit
        levels[:] = fill * WEIGHT_LEVELS
    row_scales = rng.random(rows).astype(np.float32)
    scales, bias = (pad_outputs(rng.random(outputs).astype(np.float32)) for _ in range(2))
    return q, row_scales, pack_weight(levels), scales, bias


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("fill", [None, 1, -1])
def test_the_linear_is_its_reference_to_the_bit(shape, fill):
    arguments = operands(*shape, fill=fill)
    assert np.array_equal(int8_linear(*arguments), int8_linear_reference(*arguments))


@pytest.mark.parametrize("inputs", [1, 2, 576, 1536, 4096, 28672])
def test_activations_take_as_many_levels_as_an_int32_sum_can_hold(inputs):
    largest = inputs * WEIGHT_LEVELS * activation_levels(inputs)
    assert largest < 2**31
    assert activation_levels(inputs) == 2**15 - 1 or largest + inputs * WEIGHT_LEVELS >= 2**31
    assert activation_levels(inputs) > 2**8


@pytest.mark.parametrize("num_workers", [1, 2, 3, 7])
def test_shares_fill_the_output_and_change_no_bit(num_workers):
    q, row_scales, *linear = operands(9, 36, 5 * BLOCK - 3)
    out = np.full((9, 5 * BLOCK), np.nan, np.float32)
    for worker in range(num_workers):
        linear_partition(packed_rows(q), row_scales, tuple(linear), out, worker, num_workers)
    assert np.array_equal(out, int8_linear(q, row_scales, *linear))


def test_a_row_is_the_same_in_every_batch():
    q, row_scales, *linear = operands(13, 96, 40)
    together = int8_linear(q, row_scales, *linear)
    for first in range(13):
        for end in range(first + 1, 14):
            part = int8_linear(q[first:end], row_scales[first:end], *linear)
            assert np.array_equal(part, together[first:end])


def test_packing_can_be_undone():
    levels = np.arange(-60, 60).reshape(8, 15).astype(np.int8)
    unpacked = unpack_weight(pack_weight(levels))
    assert unpacked.shape == (BLOCK, 16)
    assert np.array_equal(unpacked[:8, :15], levels)
    assert not unpacked[8:].any()
    assert not unpacked[:, 15].any()


def test_weights_are_off_by_half_a_step_at_most():
    weight = np.random.default_rng(0).normal(size=(20, 31)).astype(np.float32)
    weight[3] = 0
    blocks, scales = quantize_weight(weight)
    restored = unpack_weight(blocks)[:20, :31] * scales[:20, None]
    assert np.all(np.abs(restored - weight) <= 0.501 * scales[:20, None])
    assert np.array_equal(np.abs(restored[3]), np.zeros(31))
    assert np.abs(unpack_weight(blocks)).max() == WEIGHT_LEVELS
