"""Logits of the target at one node to the distribution its next token is drawn from.

    mask stop tokens while too few tokens were emitted -> / temperature -> min-p -> top-k -> top-p

The order is vLLM's; `transformers` applies min-p last, which differs only when top-p is on too.
Ties: min-p and top-k keep every token that equals the last one kept (as both of them do), top-p
prefers the lower token id. So the kept set is a function of the logits alone.
"""

from dataclasses import dataclass

import numpy as np

from canopy.sampling import SamplingParams

_BUCKETS_PER_NAT = np.float32(32.0)
_NUM_BUCKETS = 2048


@dataclass(frozen=True)
class Distribution:
    """The tokens that can be drawn, with unnormalized log-probs (the largest is 0)."""

    token_ids: np.ndarray  # int64 [n], ascending
    logits: np.ndarray  # float32 [n], after temperature

    def weights(self, vocab_size: int) -> np.ndarray:
        """float64 [vocab_size]: probability over that of the most probable token."""
        weights = np.exp(self.logits).astype(np.float64)
        if len(self.token_ids) == vocab_size:
            return weights
        dense = np.zeros(vocab_size)
        dense[self.token_ids] = weights
        return dense


def target_distribution(
    logits: np.ndarray, params: SamplingParams, num_emitted: int
) -> Distribution:
    """The distribution of the token that follows a node.

    logits: float32 [V]. num_emitted: tokens emitted before this one. Temperature must be
    positive. Raises ValueError when no logit is finite or one is NaN.
    """
    logits = mask_stops(logits, params, num_emitted)
    peak = _peak(logits)
    with np.errstate(over="ignore"):  # so far below the peak that -inf is right
        scaled = (logits - peak) / np.float32(params.temperature)
    kept = np.flatnonzero(_above_min_p(scaled, params.min_p))
    scaled = scaled[kept]
    if 0 < params.top_k < len(kept):
        chosen = _most_probable(scaled, params.top_k)
        kept, scaled = kept[chosen], scaled[chosen]
    if params.top_p < 1.0:
        chosen = _nucleus(scaled, params.top_p)
        kept, scaled = kept[chosen], scaled[chosen]
    return Distribution(kept, scaled)


def greedy_token(logits: np.ndarray, params: SamplingParams, num_emitted: int) -> int:
    """The most probable token, of equal ones the lowest id. Raises like `target_distribution`."""
    logits = mask_stops(logits, params, num_emitted)
    _peak(logits)
    return int(np.argmax(logits))


def mask_stops(logits: np.ndarray, params: SamplingParams, num_emitted: int) -> np.ndarray:
    """The logits, with the stop tokens ruled out while `min_tokens` are not emitted yet."""
    if num_emitted >= params.min_tokens or not params.stop_token_ids:
        return logits
    masked = logits.copy()
    masked[list(params.stop_token_ids)] = -np.inf
    return masked


def _peak(logits: np.ndarray) -> np.float32:
    peak = np.max(logits)
    if not np.isfinite(peak):
        raise ValueError("the target's logits hold NaN or infinity, or every token is ruled out")
    return peak


def _above_min_p(scaled: np.ndarray, min_p: float) -> np.ndarray:
    return scaled >= np.log(min_p) if min_p > 0.0 else scaled > -np.inf


def _most_probable(scaled: np.ndarray, k: int) -> np.ndarray:
    """Ascending indices of the k largest, k < n, and of all that equal the k-th."""
    # Partitioning a head of the vocabulary is much faster than all of it.
    distance = 4.0
    head = np.flatnonzero(scaled >= -distance)
    while len(head) < k:
        distance *= 1.5
        head = np.flatnonzero(scaled >= -distance)
    place = len(head) - k
    return head[scaled[head] >= np.partition(scaled[head], place)[place]]


def _nucleus(scaled: np.ndarray, top_p: float) -> np.ndarray:
    """Ascending indices of the fewest most probable tokens whose mass reaches `top_p`.

    A token stays iff the mass before it falls short, so the first always does.
    """
    weights = np.exp(scaled).astype(np.float64)
    needed = top_p * weights.sum()
    # A histogram over the log-probs finds the bucket of the cut; only its tokens are sorted.
    bucket = np.minimum(-scaled * _BUCKETS_PER_NAT, _NUM_BUCKETS - 1).astype(np.int64)
    mass = np.cumsum(np.bincount(bucket, weights, _NUM_BUCKETS))
    cut = min(int(np.searchsorted(mass, needed)), int(bucket.max()))
    edge = np.flatnonzero(bucket == cut)
    edge = edge[np.argsort(-scaled[edge], kind="stable")]
    mass_before = np.cumsum(weights[edge]) - weights[edge] + (mass[cut - 1] if cut else 0.0)
    return np.sort(np.concatenate([np.flatnonzero(bucket < cut), edge[mass_before < needed]]))
