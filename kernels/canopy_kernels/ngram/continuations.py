"""Known continuations of a token path, with what is known of each, and their acceptance.

The acceptance of a candidate is its share in a logistic choice between all candidates and none:

    acceptance(x) = exp(score(x)) / (1 + sum of exp(score))       score = weights . features

so that a node's children never add up to more than 1. Without weights it is the blend of both
sources (canopy_kernels.ngram.candidates).
"""

import math

import numpy as np
from numba import njit

from canopy_kernels.ngram.candidates import LONGEST_GRAM, LONGEST_MATCH, find_candidates

MAX_OFFERED = 16  # of the candidates, the likeliest
LEAST_ESTIMATE = 1e-5  # below it an estimate tells nothing more

_MATCH = 1  # one-hot: longest match that the candidate followed
_NODE_MATCH = _MATCH + LONGEST_MATCH  # one-hot: longest match of the node
_MATCH_SHARE = _NODE_MATCH + LONGEST_MATCH  # log-odds among the followers of that match
_MATCH_TOTAL = _MATCH_SHARE + 1  # log of their number
_MATCH_LATEST = _MATCH_TOTAL + 1  # it followed the latest of them
_GRAM = _MATCH_LATEST + 1  # the same for the store
_NODE_GRAM = _GRAM + LONGEST_GRAM
_GRAM_SHARE = _NODE_GRAM + LONGEST_GRAM
_GRAM_TOTAL = _GRAM_SHARE + 1
_BOTH = _GRAM_TOTAL + 1  # in the sequence and in the store
_MATCH_ODDS = _BOTH + 1  # log-odds among the followers of each short n that the node knows
_GRAM_ODDS = _MATCH_ODDS + LONGEST_GRAM
_ESTIMATE = _GRAM_ODDS + LONGEST_GRAM  # log of the blend of both sources
_ESTIMATE_ODDS = _ESTIMATE + 1  # its log-odds
_SEEN = _ESTIMATE_ODDS + 1  # it stands in the sequence, wherever
_SEEN_TIMES = _SEEN + 1  # log of how often
_DEPTH = _SEEN_TIMES + 1
_DRAFTED = _DEPTH + 1  # a drafter model offers it
_DRAFTED_ODDS = _DRAFTED + 1  # log-odds of its probability
_DRAFTED_RANK = _DRAFTED_ODDS + 1  # log of 1 + its rank
_DRAFTED_MATCH = _DRAFTED_RANK + 1  # it stands in the sequence's followers too; then the odds again
_DRAFTED_GRAM = _DRAFTED_MATCH + 2  # in the store's
NUM_FEATURES = _DRAFTED_GRAM + 2

MATCH_FEATURES = slice(_MATCH, _NODE_MATCH)  # any of them: known from the sequence
GRAM_FEATURES = slice(_GRAM, _NODE_GRAM)  # any of them: known from the store

FEATURES = (
    "one",
    *(f"match_{n + 1}" for n in range(LONGEST_MATCH)),
    *(f"node_match_{n + 1}" for n in range(LONGEST_MATCH)),
    "match_share",
    "match_total",
    "match_latest",
    *(f"gram_{n + 1}" for n in range(LONGEST_GRAM)),
    *(f"node_gram_{n + 1}" for n in range(LONGEST_GRAM)),
    "gram_share",
    "gram_total",
    "both",
    *(f"match_odds_{n + 1}" for n in range(LONGEST_GRAM)),
    *(f"gram_odds_{n + 1}" for n in range(LONGEST_GRAM)),
    "estimate",
    "estimate_odds",
    "seen",
    "seen_times",
    "depth",
    "drafted",
    "drafted_odds",
    "drafted_rank",
    "drafted_match",
    "drafted_match_odds",
    "drafted_gram",
    "drafted_gram_odds",
)


@njit(cache=True, nogil=True)
def continuations(suffixes, ngrams, drafted, path, depth, weights, min_match):
    """Candidates after a path, the likeliest first.

    path: int32 [n], the last tokens of sequence and path, LONGEST_MATCH at most. depth: of the
    candidates, 1 below the anchor. weights: float64 [NUM_FEATURES], or none.
    Returns int32 [k] token ids, float64 [k] log acceptance and the entropy in nats of all that
    was found.
    """
    found, num, longest = find_candidates(suffixes, ngrams, drafted, path, min_match)
    acceptance = np.empty(num)
    if len(weights):
        rows = _features(found, num, longest, drafted, depth)
        _choice(rows, weights, acceptance)
    else:
        acceptance[:] = found.estimate[:num]
    order = np.argsort(-acceptance, kind="mergesort")
    kept = order[: np.count_nonzero(acceptance > 0.0)]
    logs = np.log(acceptance[kept])
    nats = -np.sum(acceptance[kept] * logs)
    return found.token_ids[kept[:MAX_OFFERED]], logs[:MAX_OFFERED], nats


@njit(cache=True, nogil=True)
def candidate_features(suffixes, ngrams, drafted, path, depth, min_match):
    """Token ids int32 [k] and features float64 [k, NUM_FEATURES] of all candidates, as found."""
    found, num, longest = find_candidates(suffixes, ngrams, drafted, path, min_match)
    return found.token_ids[:num].copy(), _features(found, num, longest, drafted, depth)


@njit(cache=True, nogil=True)
def _features(found, num, longest, drafted, depth):
    rows = np.zeros((num, NUM_FEATURES))
    for i in range(num):
        row = rows[i]
        row[0] = 1.0
        row[_DEPTH] = depth - 1.0
        if longest[0]:
            row[_NODE_MATCH + longest[0] - 1] = 1.0
        if longest[1]:
            row[_NODE_GRAM + longest[1] - 1] = 1.0
        if found.match[i]:
            row[_MATCH + found.match[i] - 1] = 1.0
            row[_MATCH_SHARE] = _share_odds(found.match_count[i], found.match_total[i])
            row[_MATCH_TOTAL] = math.log(found.match_total[i])
            row[_MATCH_LATEST] = found.is_latest[i]
        if found.gram[i]:
            row[_GRAM + found.gram[i] - 1] = 1.0
            row[_GRAM_SHARE] = _share_odds(found.gram_count[i], found.gram_total[i])
            row[_GRAM_TOTAL] = math.log(found.gram_total[i])
        for n in range(LONGEST_GRAM):
            for memory, first in ((0, _MATCH_ODDS), (1, _GRAM_ODDS)):
                if found.counts[-1, memory, n] > 0.0:
                    row[first + n] = _share_odds(
                        found.counts[i, memory, n], found.counts[-1, memory, n]
                    )
        row[_BOTH] = 1.0 if found.match[i] > 0 and found.gram[i] > 0 else 0.0
        row[_ESTIMATE] = math.log(max(found.estimate[i], LEAST_ESTIMATE))
        row[_ESTIMATE_ODDS] = _odds(found.estimate[i])
        if found.num_seen[i]:
            row[_SEEN], row[_SEEN_TIMES] = 1.0, math.log(found.num_seen[i])
        rank = found.draft_rank[i]
        if rank >= 0:
            odds = _odds(math.exp(drafted.log_probs[rank]))
            row[_DRAFTED], row[_DRAFTED_ODDS] = 1.0, odds
            row[_DRAFTED_RANK] = math.log(1.0 + rank)
            if found.match[i]:
                row[_DRAFTED_MATCH], row[_DRAFTED_MATCH + 1] = 1.0, odds
            if found.gram[i]:
                row[_DRAFTED_GRAM], row[_DRAFTED_GRAM + 1] = 1.0, odds
    return rows


@njit(inline="always")
def _share_odds(count, total):
    return math.log((count + 0.25) / (total - count + 0.25))


@njit(inline="always")
def _odds(probability):
    bounded = min(max(probability, LEAST_ESTIMATE), 1.0 - LEAST_ESTIMATE)
    return math.log(bounded / (1.0 - bounded))


@njit(cache=True, nogil=True)
def _choice(rows, weights, acceptance):
    """The logistic choice, its largest term taken out."""
    peak = 0.0
    for i in range(len(rows)):
        score = 0.0
        for f in range(NUM_FEATURES):
            score += rows[i, f] * weights[f]
        acceptance[i] = score
        peak = max(peak, score)
    total = math.exp(-peak)
    for i in range(len(rows)):
        acceptance[i] = math.exp(acceptance[i] - peak)
        total += acceptance[i]
    for i in range(len(rows)):
        acceptance[i] /= total
