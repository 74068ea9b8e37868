"""Logits of the target at one node to the distribution its next token is drawn from.

    / temperature -> top-k -> top-p -> min-p -> typical-p

The order is that of `transformers`; vLLM applies min-p first, which differs only when top-p is on
too. Ties: top-k, min-p and typical-p keep every token that equals the last one kept (as both of
them do), top-p prefers the lower token id. So the kept set is a function of the logits alone.
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


def target_distribution(logits: np.ndarray, params: SamplingParams) -> Distribution:
    """The distribution of the token that follows a node.

    logits: float32 [V]. Temperature must be positive. Raises ValueError when no logit is finite or
    one is NaN.
    """
    scaled = _scaled(logits, params.temperature)
    kept = np.flatnonzero(scaled > -np.inf)
    scaled = scaled[kept]
    if 0 < params.top_k < len(kept):
        chosen = _most_probable(scaled, params.top_k)
        kept, scaled = kept[chosen], scaled[chosen]
    if params.top_p < 1.0:
        chosen = _nucleus(scaled, params.top_p)
        kept, scaled = kept[chosen], scaled[chosen]
    if params.min_p > 0.0:
        chosen = np.flatnonzero(scaled >= np.log(params.min_p))
        kept, scaled = kept[chosen], scaled[chosen]
    if params.typical_p < 1.0:
        kept = kept[_typical(scaled, params.typical_p)]
        scaled = _scaled(logits[kept], params.temperature)
    return Distribution(kept, scaled)


def greedy_token(logits: np.ndarray) -> int:
    """The most probable token, of equal ones the lowest id. Raises like `target_distribution`."""
    _peak(logits)
    return int(np.argmax(logits))


def _scaled(logits: np.ndarray, temperature: float) -> np.ndarray:
    """float32 [V], 0 at the most probable token."""
    with np.errstate(over="ignore"):  # so far below the peak that -inf is right
        scaled: np.ndarray = (logits - _peak(logits)) / np.float32(temperature)
    return scaled


def _peak(logits: np.ndarray) -> np.float32:
    peak = np.max(logits)
    if not np.isfinite(peak):
        raise ValueError("the target's logits hold NaN or infinity, or every token is ruled out")
    return peak


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


def _typical(scaled: np.ndarray, typical_p: float) -> np.ndarray:
    """Ascending indices of the tokens whose information is nearest to the entropy.

    As many as it takes for their mass to reach `typical_p`, and all that are as near as the last.
    """
    log_probs = scaled.astype(np.float64) - np.log(np.exp(scaled, dtype=np.float64).sum())
    probs = np.exp(log_probs)
    distances = np.abs(log_probs - probs @ log_probs)
    order = np.argsort(distances, kind="stable")
    num_before = int((np.cumsum(probs[order]) < typical_p).sum())
    return np.flatnonzero(distances <= distances[order[min(num_before, len(order) - 1)]])
