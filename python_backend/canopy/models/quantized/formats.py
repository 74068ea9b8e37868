"""Formats of quantized weights: what becomes of a linear's weight, and of an embedding.

int8    levels of 8 bits and a scale per output; rows of 15 bits; the embedding as it was stored
int4    levels of 4 bits, a scale and a minimum per 32 inputs; rows of 8 bits per 32 inputs;
        head and embedding the same with 8 bits
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from canopy_kernels.int4.linears import GroupedLinears
from canopy_kernels.int4.quantize import quantize4, quantize8
from canopy_kernels.int8.gemm import quantize_weight
from canopy_kernels.int8.linears import Linears


@dataclass(frozen=True)
class LinearFormat:
    """Of the weight of one linear; its arrays are those of `kind` but for the bias."""

    kind: Any  # a named tuple of arrays with a layer axis each, the bias last
    quantize: Callable[[np.ndarray], tuple[np.ndarray, ...]]  # float32 [out, in]


@dataclass(frozen=True)
class WeightFormat:
    """Of a decoder's weights."""

    name: str  # as in `target.dtype`
    version: int  # of the kept arrays; versions of Canopy that differ in it share no folder
    layers: LinearFormat
    head: LinearFormat
    has_quantized_embedding: bool  # in the head's format


_PER_OUTPUT = LinearFormat(Linears, quantize_weight)
_GROUPS_4 = LinearFormat(GroupedLinears, lambda weight: (quantize4(weight),))
_GROUPS_8 = LinearFormat(GroupedLinears, lambda weight: (quantize8(weight),))

FORMATS = {
    "int8": WeightFormat("int8", 3, _PER_OUTPUT, _PER_OUTPUT, has_quantized_embedding=False),
    "int4": WeightFormat("int4", 1, _GROUPS_4, _GROUPS_8, has_quantized_embedding=True),
}
