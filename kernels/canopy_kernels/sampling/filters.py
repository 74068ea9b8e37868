"""What can be drawn at each row of logits: temperature, peak and the cut of the filters.

    scaled = (logits - peak) / temperature            float32; 0 at the most probable token
    a token is kept iff scaled > floor, or scaled = floor and its id <= last_id

top-k, top-p and min-p, in that order, all keep a head of the row ordered by (scaled falling, id
rising): one floor and one id state it exactly. top-k and min-p keep every token that equals the
last one kept, top-p keeps the lower ids of equal tokens. typical-p keeps no head: `keep_typical`
rules the other tokens out, and states new thresholds.

Thresholds are rows of float32 [R, 4]: temperature, peak, floor, last_id (exact, ids stay below
2^24). Temperature 0 stands for greedy, where no filter applies. A peak that is not finite marks a
row that cannot be sampled: it holds NaN or +infinity, or every token of it is ruled out.
"""

from dataclasses import dataclass

import torch
import triton
import triton.language as tl


@dataclass(frozen=True)
class Filters:
    """Per row; top_k 0, top_p 1 and min_p 0 switch a filter off."""

    top_ks: torch.Tensor  # int32 [R]
    top_ps: torch.Tensor  # float32 [R]
    min_ps: torch.Tensor  # float32 [R]


def row_thresholds(
    logits: torch.Tensor, temperatures: torch.Tensor, filters: Filters | None = None
) -> torch.Tensor:
    """float32 [R, 4] thresholds of logits [R, V]; temperatures float32 [R].

    Filters cost a sort of the rows; sampling.thresholds does the same without one. Runs where the
    logits are, without synchronization.
    """
    assert logits.shape[1] <= 1 << 24, "token ids must be exact in float32"
    peaks = logits.amax(dim=1).float()
    floors = torch.full_like(temperatures, -torch.inf)
    last_ids = torch.full_like(temperatures, logits.shape[1])
    if filters is not None:
        divisors = torch.where(temperatures > 0, temperatures, 1.0)
        scaled = (logits.float() - peaks[:, None]) / divisors[:, None]
        floors, last_ids = _cut(scaled, filters)
        floors = torch.where(temperatures > 0, floors, -torch.inf)
    return torch.stack([temperatures, peaks, floors, last_ids.float()], dim=1)


def _cut(scaled: torch.Tensor, filters: Filters) -> tuple[torch.Tensor, torch.Tensor]:
    """Floors and last ids, [R] each."""
    vocab_size = scaled.shape[1]
    ordered, ids = scaled.sort(dim=1, descending=True, stable=True)
    kept = ordered > -torch.inf
    num_kept = kept.sum(dim=1)
    has_top_k = (filters.top_ks > 0) & (filters.top_ks < num_kept)
    place = torch.where(has_top_k, filters.top_ks, vocab_size).long() - 1
    kept &= ordered >= ordered.gather(1, place[:, None])
    weights = torch.where(kept, ordered.exp(), 0.0).double()
    needed = filters.top_ps.double() * weights.sum(dim=1)
    before = weights.cumsum(dim=1) - weights
    has_top_p = filters.top_ps < 1.0
    kept &= (before < needed[:, None]) | ~has_top_p[:, None]
    kept &= ordered >= filters.min_ps.double().log().float()[:, None]
    last = (kept.sum(dim=1, keepdim=True) - 1).clamp(min=0)
    return ordered.gather(1, last)[:, 0], ids.gather(1, last)[:, 0]


def keep_typical(
    logits: torch.Tensor, thresholds: torch.Tensor, typical_ps: torch.Tensor
) -> torch.Tensor:
    """Rule out, in place, the tokens that typical-p leaves out of what `thresholds` keep.

    logits float32 [R, V], thresholds [R, 4], typical_ps float32 [R], 1 = off. Returns thresholds
    of what is left. Of the tokens whose information is nearest to the entropy as many are kept as
    it takes for their mass to reach typical_p, and all that are as near as the last one.
    """
    temperatures = thresholds[:, 0]
    is_on = ((typical_ps < 1.0) & (temperatures > 0))[:, None]
    scaled = _kept_scaled(logits, thresholds).double()
    log_probs = scaled - scaled.logsumexp(dim=1, keepdim=True)
    probs = log_probs.exp()
    entropies = -torch.where(probs > 0, probs * log_probs, 0.0).sum(dim=1, keepdim=True)
    ordered, order = (log_probs + entropies).abs().sort(dim=1, stable=True)
    mass = probs.gather(1, order).cumsum(dim=1)
    num_before = (mass < typical_ps.double()[:, None]).sum(dim=1, keepdim=True)
    farthest = ordered.gather(1, num_before.clamp(max=logits.shape[1] - 1))
    is_left = ((log_probs + entropies).abs() <= farthest) & (scaled > -torch.inf)
    logits.masked_fill_(is_on & ~is_left, -torch.inf)
    return torch.where(is_on, row_thresholds(logits, temperatures), thresholds)


def _kept_scaled(logits: torch.Tensor, thresholds: torch.Tensor) -> torch.Tensor:
    """As `kept_scaled`, of whole rows; [R, V]."""
    temperatures, peaks, floors, last_ids = (column[:, None] for column in thresholds.unbind(1))
    scaled = (logits - peaks) / torch.where(temperatures > 0, temperatures, 1.0)
    token_ids = torch.arange(logits.shape[1], device=logits.device)
    kept = (scaled > floors) | ((scaled == floors) & (token_ids <= last_ids))
    return torch.where(kept, scaled, -torch.inf)


@triton.jit
def kept_scaled(logits, token_ids, thresholds_ptr):
    """float32: scaled logits of some tokens of a row, -inf where a token is not kept."""
    temperature, peak = tl.load(thresholds_ptr), tl.load(thresholds_ptr + 1)
    floor, last_id = tl.load(thresholds_ptr + 2), tl.load(thresholds_ptr + 3)
    scaled = tl.div_rn(logits.to(tl.float32) - peak, temperature)
    kept = (scaled > floor) | ((scaled == floor) & (token_ids <= last_id))
    return tl.where(kept, scaled, float("-inf"))
