"""Linears on grouped weights, as a format of canopy_kernels.int8.linears."""

from typing import NamedTuple

import numpy as np
from numba.extending import overload

from canopy_kernels.cpu import aligned
from canopy_kernels.int4.gemm import grouped_partition, pack_row, packed_size
from canopy_kernels.int8.linears import is_kind, linear, quantize_and_pack_row


class GroupedRows(NamedTuple):
    """Quantized inputs of a linear."""

    packed: np.ndarray  # uint8, as `grouped_partition` takes it


class GroupedLinears(NamedTuple):
    """One linear of each of L layers; layouts of canopy_kernels.int4.layout."""

    blocks: np.ndarray  # uint8 [L, out* / 16, G, record]
    bias: np.ndarray  # float32 [L, out*]

    @staticmethod
    def new_rows(num_rows: int, num_inputs: int) -> GroupedRows:
        """Room for as many rows."""
        return GroupedRows(aligned.empty(packed_size(num_rows, num_inputs), np.uint8))


@overload(linear)
def _linear(rows, linears, layer, out, context):
    if not is_kind(linears, GroupedLinears):
        return None

    def implementation(rows, linears, layer, out, context):
        weights = linears.blocks[layer], linears.bias[layer]
        grouped_partition(rows.packed, weights, out, context.worker, context.num_workers)

    return implementation


@overload(quantize_and_pack_row)
def _quantize_and_pack_row(values, scratch, rows, row, num_rows):
    if not is_kind(rows, GroupedRows):
        return None

    def implementation(values, scratch, rows, row, num_rows):
        pack_row(values, rows.packed, row, num_rows)

    return implementation
