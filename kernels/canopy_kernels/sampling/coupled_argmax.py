"""A draw from the target at each row: the token where scaled logit + Gumbel noise is largest.

    token(row) = argmax over kept tokens of scaled(token) + gumbel(seed, position, token)

with the distribution of a row as in sampling.filters and the noise of sampling.noise, so that
the token is a function of (logits, seed, position) alone. Temperature 0 gives argmax of the
logits. Of equal scores the lowest id wins. A row that cannot be sampled gives -1.

logits [R, V] float32, bfloat16 or float16, rows contiguous; the vocabulary is split into parts of
a fixed size, each searched by one program, and a second kernel picks the best part. Noise exists
in registers only. Scores are compared in float64, exactly as on the CPU, so ids are exact: they
can differ only if two scores agree to float32's last bit and the float64 logarithms of host and
device round the noise of one of them differently.
"""

import torch
import triton
import triton.language as tl

from canopy_kernels.sampling.device_noise import (
    GUMBEL_ERROR,
    gumbel_estimate,
    gumbel_of,
    word_at,
    word_tile,
)
from canopy_kernels.sampling.filters import kept_scaled

PART = 4096  # tokens searched by one program: 32 programs a row at a vocabulary of 128k
TILE = 1024


def coupled_argmax(
    logits: torch.Tensor, thresholds: torch.Tensor, seeds: torch.Tensor, positions: torch.Tensor
) -> torch.Tensor:
    """int32 [R] token ids.

    logits: [R, V]. thresholds: float32 [R, 4] of `row_thresholds`. seeds: int64 [R], the bits of
    unsigned seeds. positions: int64 [R], of the tokens to be chosen.
    """
    num_rows, vocab_size = logits.shape
    assert logits.stride(1) == 1
    assert thresholds.shape == (num_rows, 4)
    assert thresholds.is_contiguous()
    assert seeds.dtype == positions.dtype == torch.int64
    num_parts = triton.cdiv(vocab_size, PART)
    scores = logits.new_empty((num_rows, num_parts), dtype=torch.float64)
    part_ids = logits.new_empty((num_rows, num_parts), dtype=torch.int32)
    token_ids = logits.new_empty(num_rows, dtype=torch.int32)
    if num_rows > 0:
        _part_argmax_kernel[(num_rows, num_parts)](
            logits,
            thresholds,
            seeds,
            positions,
            scores,
            part_ids,
            vocab_size,
            logits.stride(0),
            PART,
            TILE,
        )
        _best_part_kernel[(num_rows,)](
            scores, part_ids, thresholds, token_ids, num_parts, triton.next_power_of_2(num_parts)
        )
    return token_ids


@triton.jit
def _part_argmax_kernel(
    logits_ptr,  # [R, V]
    thresholds_ptr,  # float32 [R, 4]
    seeds_ptr,  # int64 [R]
    positions_ptr,  # int64 [R]
    scores_ptr,  # float64 [R, parts]
    part_ids_ptr,  # int32 [R, parts]
    vocab_size,
    row_stride,
    PART: tl.constexpr,
    TILE: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    part = tl.program_id(1)
    seed, position = tl.load(seeds_ptr + row), tl.load(positions_ptr + row)
    is_greedy = tl.load(thresholds_ptr + row * 4) == 0.0
    best_score = tl.full((), float("-inf"), tl.float64)
    best_id = tl.full((), -1, tl.int32)
    for start in range(part * PART, tl.minimum(part * PART + PART, vocab_size), TILE):
        token_ids = start + tl.arange(0, TILE)
        logits = tl.load(
            logits_ptr + row * row_stride + token_ids, token_ids < vocab_size, float("-inf")
        )
        if is_greedy:
            logits = tl.where(logits == logits, logits, float("-inf"))  # NaN: the row gives -1
            score, index = tl.max(logits.to(tl.float32), 0, return_indices=True)
            if score > best_score:
                best_score, best_id = score.to(tl.float64), start + index
        else:
            scaled = kept_scaled(logits, token_ids, thresholds_ptr + row * 4)
            best_score, best_id = _improve(scaled, seed, position, start, best_score, best_id, TILE)
    place = row * tl.num_programs(1) + part
    tl.store(scores_ptr + place, best_score)
    tl.store(part_ids_ptr + place, best_id)


@triton.jit
def _improve(scaled, seed, position, start, best_score, best_id, TILE: tl.constexpr):
    """The best score so far and its token, after a tile of scaled logits was looked at.

    Estimates tell which tokens can win; those few, nearly always one or none, are scored exactly.
    """
    offsets = tl.arange(0, TILE)
    estimates = scaled + gumbel_estimate(word_tile(seed, position, start, TILE))
    bar = tl.maximum(tl.max(estimates, 0), best_score.to(tl.float32)) - 2.0 * GUMBEL_ERROR
    rivals = (estimates >= bar) & (scaled > float("-inf"))
    while tl.max(rivals.to(tl.int32), 0) > 0:
        offset = tl.min(tl.where(rivals, offsets, TILE), 0)
        noise = gumbel_of(word_at(seed, position, start + offset, 0))
        logit = tl.max(tl.where(offsets == offset, scaled, float("-inf")), 0)
        score = logit.to(tl.float64) + noise.to(tl.float64)
        if score > best_score:
            best_score, best_id = score, start + offset
        rivals = rivals & (offsets > offset)
    return best_score, best_id


@triton.jit
def _best_part_kernel(
    scores_ptr,  # float64 [R, parts]
    part_ids_ptr,  # int32 [R, parts]
    thresholds_ptr,  # float32 [R, 4]
    token_ids_ptr,  # int32 [R]
    num_parts,
    BLOCK: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    parts = tl.arange(0, BLOCK)
    within = parts < num_parts
    scores = tl.load(scores_ptr + row * num_parts + parts, within, float("-inf"))
    part_ids = tl.load(part_ids_ptr + row * num_parts + parts, within, -1)
    best = tl.max(scores, 0)
    token_id = tl.min(tl.where((scores == best) & (part_ids >= 0), part_ids, 2147483647), 0)
    peak = tl.load(thresholds_ptr + row * 4 + 1)
    tl.store(token_ids_ptr + row, tl.where(tl.abs(peak) < float("inf"), token_id, -1))
