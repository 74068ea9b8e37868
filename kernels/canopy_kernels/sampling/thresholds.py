"""The thresholds of canopy_kernels.sampling.filters in one kernel, without sorting a vocabulary.

Tokens are ordered by a key, the bits of |scaled| as a whole number: scaled logits are 0 or less, so
a smaller key is a more probable token. A filter keeps the keys up to a cut, and the cut is found by
halving the range of keys: 31 looks at the row, which lies in the card's cache by then.

    top-k    cut = the least key that, with those below it, k tokens or more have
    top-p    cut = the least key that, with those below it, top_p of the kept mass or more has;
             of the tokens at the cut the lowest ids, as many as are needed
    min-p    cut = key of log(min_p), where that is less

Counts are exact. Masses are float64 sums of float32 exponentials in a fixed order, so a token at
the very edge of top-p may differ from the CPU's choice only where masses agree to float64 rounding.
"""

import torch
import triton
import triton.language as tl

from canopy_kernels.sampling.filters import Filters

TILE = 2048
OPTIONS = {"num_warps": 8}  # with fewer, a tile in registers spills
_LARGEST_KEY = tl.constexpr(0x7F7FFFFF)  # of a finite number
_TILE = tl.constexpr(TILE)


def launch_row_thresholds(
    logits: torch.Tensor, temperatures: torch.Tensor, filters: Filters
) -> torch.Tensor:
    """As `row_thresholds`, of logits [R, V] whose rows are contiguous."""
    num_rows, vocab_size = logits.shape
    assert vocab_size <= 1 << 24, "token ids must be exact in float32"
    assert logits.stride(1) == 1
    thresholds = temperatures.new_empty((num_rows, 4))
    if num_rows > 0:
        _row_thresholds_kernel[(num_rows,)](
            logits,
            temperatures,
            filters.top_ks,
            filters.top_ps,
            filters.min_ps.double().log().float(),
            thresholds,
            vocab_size,
            logits.stride(0),
            **OPTIONS,
        )
    return thresholds


@triton.jit
def _row_thresholds_kernel(
    logits_ptr,  # [R, V]
    temperatures_ptr,
    top_ks_ptr,
    top_ps_ptr,
    min_floors_ptr,
    thresholds_ptr,  # float32 [R, 4]
    vocab_size,
    row_stride,
):
    row = tl.program_id(0).to(tl.int64)
    row_ptr = logits_ptr + row * row_stride
    temperature = tl.load(temperatures_ptr + row)
    top_k, top_p = tl.load(top_ks_ptr + row), tl.load(top_ps_ptr + row)
    min_floor = tl.load(min_floors_ptr + row)
    peak = _peak(row_ptr, vocab_size)
    floor = tl.full((), float("-inf"), tl.float32)
    last_id = vocab_size
    is_filtered = (top_k > 0) | (top_p < 1.0) | (min_floor > float("-inf"))
    if (temperature > 0.0) & (tl.abs(peak) < float("inf")) & is_filtered:
        scaled_row = (row_ptr, vocab_size, peak, temperature)
        cut = tl.full((), _LARGEST_KEY, tl.int32)
        if top_k > 0:
            cut = _least_key_of_count(scaled_row, cut, top_k)
        if top_p < 1.0:
            needed = top_p.to(tl.float64) * _mass(scaled_row, cut)
            cut = _least_key_of_mass(scaled_row, cut, needed)
            last_id = _last_id(scaled_row, cut, needed - _mass(scaled_row, cut - 1))
        if _key(min_floor) < cut:
            cut = _key(min_floor)
            last_id = vocab_size
        floor = -(cut.to(tl.float32, bitcast=True))
    tl.store(thresholds_ptr + row * 4, temperature)
    tl.store(thresholds_ptr + row * 4 + 1, peak)
    tl.store(thresholds_ptr + row * 4 + 2, floor)
    tl.store(thresholds_ptr + row * 4 + 3, last_id.to(tl.float32))


@triton.jit
def _peak(row_ptr, vocab_size):
    """float32: the largest logit; NaN if one is NaN."""
    peaks = tl.full((_TILE,), float("-inf"), tl.float32)
    nans = tl.zeros((_TILE,), tl.int32)
    for start in range(0, vocab_size, _TILE):
        ids = start + tl.arange(0, _TILE)
        logits = tl.load(row_ptr + ids, ids < vocab_size, float("-inf")).to(tl.float32)
        nans += (logits != logits).to(tl.int32)
        peaks = tl.maximum(peaks, logits)
    return tl.where(tl.sum(nans, 0) > 0, float("nan"), tl.max(peaks, 0))


@triton.jit
def _key(scaled):
    return tl.abs(scaled).to(tl.int32, bitcast=True)


@triton.jit
def _tile(scaled_row, start):
    """Ids, scaled logits and keys of a tile of tokens; the key of no token is beyond any cut."""
    row_ptr, vocab_size, peak, temperature = scaled_row
    ids = start + tl.arange(0, _TILE)
    logits = tl.load(row_ptr + ids, ids < vocab_size, float("-inf")).to(tl.float32)
    scaled = tl.div_rn(logits - peak, temperature)
    return ids, scaled, _key(scaled)


@triton.jit
def _count(scaled_row, cut):
    """int32: tokens with a key up to the cut."""
    counts = tl.zeros((_TILE,), tl.int32)
    for start in range(0, scaled_row[1], _TILE):
        _, _, keys = _tile(scaled_row, start)
        counts += (keys <= cut).to(tl.int32)
    return tl.sum(counts, 0)


@triton.jit
def _mass(scaled_row, cut):
    """float64: exp(scaled) of the tokens with a key up to the cut."""
    masses = tl.zeros((_TILE,), tl.float64)
    for start in range(0, scaled_row[1], _TILE):
        _, scaled, keys = _tile(scaled_row, start)
        masses += tl.where(keys <= cut, tl.exp(scaled).to(tl.float64), 0.0)
    return tl.sum(masses, 0)


@triton.jit
def _least_key_of_count(scaled_row, high, wanted):
    """The least key up to which so many tokens stand; `high` if there are fewer."""
    low = high * 0
    while low < high:
        middle = low + (high - low) // 2
        if _count(scaled_row, middle) >= wanted:
            high = middle
        else:
            low = middle + 1
    return high


@triton.jit
def _least_key_of_mass(scaled_row, high, wanted):
    """The same of a mass."""
    low = high * 0
    while low < high:
        middle = low + (high - low) // 2
        if _mass(scaled_row, middle) >= wanted:
            high = middle
        else:
            low = middle + 1
    return high


@triton.jit
def _last_id(scaled_row, cut, missing):
    """int32: tokens at the cut are taken, lowest ids first, until they have the missing mass."""
    weight = tl.exp(-(cut.to(tl.float32, bitcast=True))).to(tl.float64)
    left = tl.ceil(missing / weight).to(tl.int32)
    last = cut * 0
    for start in range(0, scaled_row[1], _TILE):
        ids, _, keys = _tile(scaled_row, start)
        at_cut = (keys == cut).to(tl.int32)
        is_needed = (at_cut > 0) & (tl.cumsum(at_cut, 0) <= left)
        last = tl.maximum(last, tl.max(tl.where(is_needed, ids, 0), 0))
        left -= tl.sum(at_cut, 0)
    return last
