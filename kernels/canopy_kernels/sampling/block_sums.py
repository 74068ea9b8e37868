"""The mass of each part of a row's distribution: a sampler finds its token without a full scan.

    masses[r, i] = sum over kept tokens of part i of exp(scaled(token))     float64

with the distribution of a row as in sampling.filters and parts of PART consecutive tokens. The
exponential is float32's, the sum float64's: the sums of the CPU path up to float64 rounding.
A row that cannot be sampled gives NaN or 0.
"""

import torch
import triton
import triton.language as tl

from canopy_kernels.sampling.filters import kept_scaled

PART = 1024  # the walk of recursive rejection holds one part in registers


def row_masses(logits: torch.Tensor, thresholds: torch.Tensor) -> torch.Tensor:
    """float64 [R, parts] of logits [R, V], rows contiguous, and thresholds float32 [R, 4]."""
    num_rows, vocab_size = logits.shape
    assert logits.stride(1) == 1
    assert thresholds.is_contiguous()
    masses = logits.new_empty((num_rows, triton.cdiv(vocab_size, PART)), dtype=torch.float64)
    if num_rows > 0:
        _row_masses_kernel[masses.shape](
            logits, thresholds, masses, vocab_size, logits.stride(0), PART
        )
    return masses


@triton.jit
def _row_masses_kernel(
    logits_ptr,  # [R, V]
    thresholds_ptr,  # float32 [R, 4]
    masses_ptr,  # float64 [R, parts]
    vocab_size,
    row_stride,
    PART: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    part = tl.program_id(1)
    token_ids = part * PART + tl.arange(0, PART)
    row_source = (logits_ptr + row * row_stride, thresholds_ptr + row * 4, vocab_size)
    weights = token_weights(row_source, token_ids)
    tl.store(masses_ptr + row * tl.num_programs(1) + part, tl.sum(weights, 0))


@triton.jit
def token_weights(row_source, token_ids):
    """float64 exp(scaled) of some tokens of a row; 0 where a token is not kept or is no token.

    row_source: pointers to the row's logits and thresholds, and the size of the vocabulary.
    """
    row_ptr, thresholds_ptr, vocab_size = row_source
    is_token = (token_ids >= 0) & (token_ids < vocab_size)
    logits = tl.load(row_ptr + token_ids, is_token, float("-inf"))
    return tl.exp(kept_scaled(logits, token_ids, thresholds_ptr)).to(tl.float64)
