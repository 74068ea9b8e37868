"""The options of a sequence, told to what a drafter offers, so that no node is spent in vain."""

import math
from collections.abc import Sequence

import numpy as np

from canopy.logits_processors.edits import BITS, LogitEdits
from canopy.logits_processors.processor import LogitsProcessor

# A tokenizer spells a forced text in one usual way, and the model nearly always takes it.
_FORCED_LOG_PROB = math.log(0.98)


def processed_candidates(
    processor: LogitsProcessor, path: Sequence[int], token_ids: np.ndarray, log_probs: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Candidates after a path as the options leave them, the likeliest first.

    token_ids: int32 [n], distinct. log_probs: float [n], probabilities that sum to at most 1; what
    is missing is that of all other tokens, and stays. A token that cannot follow is left out; one
    that must follow comes first, whether it was offered or not.
    """
    if forced := processor.forced(path):
        return np.array(forced[:1], np.int32), np.array([_FORCED_LOG_PROB], np.float32)
    edits = processor.edits([path])
    logits = np.asarray(log_probs, np.float64)
    rest = max(1.0 - float(np.exp(logits).sum()), 0.0)
    weights = np.exp(_edited(np.asarray(token_ids, np.int64), logits, edits))
    kept = np.flatnonzero(weights > 0.0)
    order = kept[np.argsort(-weights[kept], kind="stable")]
    found = np.minimum(np.log(weights[order] / (weights.sum() + rest)), 0.0)
    return np.asarray(token_ids, np.int32)[order], found.astype(np.float32)


def _edited(token_ids: np.ndarray, logits: np.ndarray, edits: LogitEdits) -> np.ndarray:
    """`edits.apply_edits` for some tokens of one row, of which log-probs are known."""
    logits = logits + _looked_up(token_ids, edits.bias_token_ids, edits.biases, 0.0)
    repetitions = _looked_up(token_ids, edits.penalty_token_ids, edits.repetitions, 1.0)
    deductions = _looked_up(token_ids, edits.penalty_token_ids, edits.deductions, 0.0)
    logits = np.where(logits > 0, logits / repetitions, logits * repetitions) - deductions
    logits[np.isin(token_ids, edits.ban_token_ids)] = -np.inf
    if len(edits.mask_rows):
        bits = edits.masks[token_ids // BITS] >> (token_ids % BITS).astype(np.uint32)
        logits[(bits & 1) == 0] = -np.inf
    return logits


def _looked_up(
    token_ids: np.ndarray, keys: np.ndarray, values: np.ndarray, default: float
) -> np.ndarray:
    """float64 [n] values of token ids; keys are rising."""
    found = np.full(len(token_ids), default)
    if len(keys):
        index = np.minimum(np.searchsorted(keys, token_ids), len(keys) - 1)
        is_known = keys[index] == token_ids
        found[is_known] = values[index[is_known]]
    return found
