"""Linears of a network by layer, and the seam between the network and the format of its weights.

`linear` and `quantize_and_pack_row` are compiled by the kind of linears and rows that they are
given: those of int8 weights are here, other formats add their own with `numba.extending.overload`.
"""

from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

import numpy as np
from numba import njit, types
from numba.extending import overload

from canopy_kernels.cpu import aligned
from canopy_kernels.int8 import gemm_dispatch as tiles
from canopy_kernels.int8.gemm import activation_levels, linear_partition
from canopy_kernels.int8.layout import QUAD, padded_inputs
from canopy_kernels.int8.rows import quantize

NewRows = Callable[[int, int], Any]  # number of rows, and of inputs


class AnyLinears(Protocol):
    """One linear of each of L layers; a named tuple of arrays, the same of every format."""

    @property
    def bias(self) -> np.ndarray:
        """float32 [L, out*]"""
        ...

    @property
    def new_rows(self) -> NewRows:
        """Room for quantized inputs."""
        ...


class PackedRows(NamedTuple):
    """Quantized inputs of a linear."""

    levels: int  # largest magnitude
    packed: np.ndarray  # uint8, as `linear_partition` takes it
    scales: np.ndarray  # float32 [T]


class Linears(NamedTuple):
    """One linear of each of L layers; layouts of canopy_kernels.int8.gemm."""

    blocks: np.ndarray  # int8 [L, out* / 16, in* / 4, 16, 4]
    scales: np.ndarray  # float32 [L, out*]
    bias: np.ndarray  # float32 [L, out*]

    @staticmethod
    def new_rows(num_rows: int, num_inputs: int) -> PackedRows:
        """Room for as many rows."""
        num_bytes = tiles.packed_size(num_rows, padded_inputs(num_inputs))
        scales = aligned.empty(num_rows, np.float32)
        packed = aligned.empty(num_bytes, np.uint8)
        return PackedRows(activation_levels(num_inputs), packed, scales)


def linear(rows, linears, layer, out, context):
    """A worker's share of one linear of packed rows. out: float32 [T, out*]."""
    raise NotImplementedError("for compiled functions")


def quantize_and_pack_row(values, scratch, rows, row, num_rows):
    """Quantize and pack one of num_rows rows. values: float32 [K]; scratch: see `alloc_scratch`."""
    raise NotImplementedError("for compiled functions")


def is_kind(numba_type: types.Type, kind: type) -> bool:
    """Whether an argument of a compiled function is a named tuple of this kind."""
    return getattr(numba_type, "instance_class", None) is kind


@njit(inline="always")
def alloc_scratch(size):
    """Levels of one row, with zeros where the linears pad."""
    return np.zeros(size + -size % QUAD, np.int16)


@overload(linear)
def _linear(rows, linears, layer, out, context):
    if not is_kind(linears, Linears):
        return None

    def implementation(rows, linears, layer, out, context):
        weights = linears.blocks[layer], linears.scales[layer], linears.bias[layer]
        scales = rows.scales[: len(out)]
        linear_partition(rows.packed, scales, weights, out, context.worker, context.num_workers)

    return implementation


@overload(quantize_and_pack_row)
def _quantize_and_pack_row(values, scratch, rows, row, num_rows):
    if not is_kind(rows, PackedRows):
        return None

    def implementation(values, scratch, rows, row, num_rows):
        rows.scales[row] = quantize(values, rows.levels, scratch)
        depth = tiles.piece_depth(len(scratch), num_rows)
        tiles.pack_row(scratch, depth, rows.packed, row, num_rows)

    return implementation
