"""Step times of machines that are not here: a roofline of weights, arithmetic and KV reads.

    T(B, R) = max(weights / bandwidth, B * flops per token / arithmetic)
              + R * context * KV bytes / bandwidth + launch

The published peaks are scaled by what dense kernels usually reach of them. Where steps are padded
to the sizes that graphs were captured for, T is a staircase over those sizes.
"""

from dataclasses import dataclass

import numpy as np

from canopy.costs.cost_model import CostModel

_REACHED_BANDWIDTH = 0.8
_REACHED_ARITHMETIC = 0.6
_LAUNCH_MS = 1.0
_CONTEXT_LENGTH = 1024
_SEQUENCES = (1, 2, 4, 8, 16, 32, 64, 128, 256)
# Sizes of captured graphs, as servers capture them.
_TOKENS = (1, 2, 4, *range(8, 256, 8), *range(256, 513, 16), *range(512 + 64, 4097, 64))


@dataclass(frozen=True)
class Accelerator:
    """Published peaks: GB/s of memory, dense bf16 TFLOP/s."""

    bandwidth: float
    arithmetic: float


@dataclass(frozen=True)
class Model:
    """A dense decoder in bf16."""

    num_parameters: float
    kv_bytes: float  # of one token, all layers


ACCELERATORS = {"a100": Accelerator(2039.0, 312.0), "h100": Accelerator(3350.0, 989.0)}
LLAMA_8B = Model(8.0e9, 2 * 32 * 8 * 128 * 2)


def roofline(accelerator: Accelerator, model: Model, is_step_function: bool = False) -> CostModel:
    """The cost model of one accelerator that serves one model."""
    bytes_per_ms = accelerator.bandwidth * 1e6 * _REACHED_BANDWIDTH
    flops_per_ms = accelerator.arithmetic * 1e9 * _REACHED_ARITHMETIC
    weights_ms = 2.0 * model.num_parameters / bytes_per_ms
    token_ms = 2.0 * model.num_parameters / flops_per_ms
    read_ms = _CONTEXT_LENGTH * model.kv_bytes / bytes_per_ms
    dense_ms = np.maximum(weights_ms, token_ms * np.array(_TOKENS)) + _LAUNCH_MS
    rows = tuple(tuple((dense_ms + num * read_ms).tolist()) for num in _SEQUENCES)
    return CostModel(_SEQUENCES, _TOKENS, rows, is_step_function)
