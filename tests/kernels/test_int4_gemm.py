"""Linears on grouped weights equal their reference to the bit by every path, batch and share."""

import numpy as np
import pytest
from numba import njit

from canopy_kernels.cpu.simd_ir import has_feature
from canopy_kernels.int4.gemm import (
    grouped_linear,
    grouped_linear_reference,
    grouped_partition,
    packed_groups,
)
from canopy_kernels.int4.gemm_simd import NATIVE, tile_of
from canopy_kernels.int4.layout import GROUP, num_groups, pack_groups, unpack_groups
from canopy_kernels.int4.products import Instructions
from canopy_kernels.int8.layout import BLOCK, pad_outputs

SHAPES = [(1, 64, 16), (3, 100, 40), (12, 576, 48), (13, 40, 16), (17, 1536, 33), (40, 96, 16)]
FEATURES = {
    ("dot", 16): "avx512vnni",
    ("dot", 8): "avx512vnni",
    ("pairs", 16): "avx512bw",
    ("pairs", 8): "avx2",
    ("plain", 16): "",
    ("plain", 8): "",
}


def operands(
    rows: int, inputs: int, outputs: int, bits: int, level: int | None = None
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Random rows, blocks and bias; with `level` all products are as large as can be."""
    rng = np.random.default_rng(rows * inputs + outputs)
    shape = outputs, num_groups(inputs)
    levels = rng.integers(0, 1 << bits, (outputs, shape[1] * GROUP)).astype(np.uint8)
    values = rng.normal(size=(rows, inputs)).astype(np.float32)
    if level is not None:
        levels[:] = level
        values[:] = np.sign(values[:, :1])
    scales, minima = (rng.normal(size=shape).astype(np.float16) for _ in range(2))
    bias = pad_outputs(rng.normal(size=outputs).astype(np.float32))
    return values, pack_groups(levels, scales, minima, bits), bias


@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_the_linear_is_its_reference_to_the_bit(shape, bits):
    for level in (None, (1 << bits) - 1):
        arguments = operands(*shape, bits, level)
        assert np.array_equal(grouped_linear(*arguments), grouped_linear_reference(*arguments))


@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("kind", FEATURES, ids=str)
def test_every_cpu_computes_the_same_bits(kind, bits):
    if FEATURES[kind] and not has_feature(FEATURES[kind]):
        pytest.skip(f"this CPU has no {FEATURES[kind]}")
    instructions = Instructions(*kind)
    tile = tile_of(instructions, bits)

    @njit
    def run(packed, num_rows, blocks, bias, out):
        block_side = (blocks.ctypes.data, blocks.shape[1], bias.ctypes.data, 0)
        tile(num_rows, packed.ctypes.data, block_side, (out.ctypes.data, out.shape[1]))
        return packed.size + blocks.size + bias.size

    num_rows = min(instructions.most_rows, NATIVE.most_rows)  # rows are packed for the native tile
    for level in (None, (1 << bits) - 1):
        rows, blocks, bias = operands(num_rows, 100, BLOCK, bits, level)
        out = np.full((num_rows, BLOCK + 3), np.nan, np.float32)
        run(packed_groups(rows), num_rows, blocks, bias, out)
        assert np.array_equal(out[:, :BLOCK], grouped_linear_reference(rows, blocks, bias))
        assert np.isnan(out[:, BLOCK:]).all()


def test_half_floats_are_the_same_without_an_instruction_for_them(monkeypatch):
    monkeypatch.setattr("canopy_kernels.int4.gemm_simd.has_feature", lambda _: False)
    tile = tile_of(NATIVE, 4)

    @njit
    def run(packed, blocks, bias, out):
        block_side = (blocks.ctypes.data, blocks.shape[1], bias.ctypes.data, 0)
        tile(1, packed.ctypes.data, block_side, (out.ctypes.data, out.shape[1]))
        return packed.size + blocks.size + bias.size

    rng = np.random.default_rng(0)
    levels = rng.integers(0, 16, (BLOCK, 4 * GROUP)).astype(np.uint8)
    bits = rng.integers(0, 1 << 16, (2, BLOCK, 4)).astype(np.uint16)
    bits[:, :4] &= 0x83FF  # subnormal
    scales, minima = np.where(bits & 0x7C00 == 0x7C00, 0x8001, bits).astype(np.uint16)
    blocks = pack_groups(levels, scales.view(np.float16), minima.view(np.float16), 4)
    rows, bias = rng.normal(size=(1, 4 * GROUP)).astype(np.float32), np.zeros(BLOCK, np.float32)
    out = np.empty((1, BLOCK), np.float32)
    run(packed_groups(rows), blocks, bias, out)
    assert np.array_equal(out, grouped_linear_reference(rows, blocks, bias))


def test_a_row_is_the_same_in_every_batch():
    rows, *linear = operands(27, 96, 40, 4)
    together = grouped_linear(rows, *linear)
    for first in (0, 1, 12, 14):
        for end in range(first + 1, 28):
            assert np.array_equal(grouped_linear(rows[first:end], *linear), together[first:end])


@pytest.mark.parametrize("num_workers", [1, 2, 3, 7])
def test_shares_fill_the_output_and_change_no_bit(num_workers):
    rows, *linear = operands(9, 36, 5 * BLOCK - 3, 4)
    out = np.full((9, 5 * BLOCK), np.nan, np.float32)
    for worker in range(num_workers):
        grouped_partition(packed_groups(rows), tuple(linear), out, worker, num_workers)
    assert np.array_equal(out, grouped_linear(rows, *linear))


@pytest.mark.parametrize("bits", [4, 8])
def test_packing_can_be_undone(bits):
    rng = np.random.default_rng(0)
    levels = rng.integers(0, 1 << bits, (20, 3 * GROUP)).astype(np.uint8)
    scales, minima = rng.normal(size=(2, 20, 3)).astype(np.float16)
    unpacked = unpack_groups(pack_groups(levels, scales, minima, bits))
    for found, expected in zip(unpacked, (levels, scales, minima), strict=True):
        assert np.array_equal(found[:20], expected)
        assert not found[20:].any()
