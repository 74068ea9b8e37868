"""Known continuations of a token path, with what is known of each, and their acceptance.

Two memories are asked for the tokens that followed the path's last n tokens before: the sequence
itself (n up to LONGEST_MATCH) and a store of n-grams (n up to LONGEST_GRAM). A third set of
candidates may come with log-probs of its own, from a drafter model.

Within a memory the estimates of PPM (Cleary and Witten, 1984) blend all n from the longest down:

    estimate(x) = sum over known n of  rest(n) * trust(n) * share(n, x)
    rest(n)     = product over longer known m of 1 - trust(m)     what they leave open
    trust(n)    = 1 - MISTRUST ** n                               a longer match is more telling

share(n, x) is the share of x among the followers, in the sequence weighted by DECAY ** age, where
age counts occurrences from the latest, 0. Estimates never add up to more than 1.

The acceptance of a candidate is its share in a logistic choice between all candidates and none:

    acceptance(x) = exp(score(x)) / (1 + sum of exp(score))       score = weights . features

so that a node's children never add up to more than 1. Without weights it is the blend of both
memories' estimates, the sequence first.
"""

import math
from typing import NamedTuple

import numpy as np
from numba import njit

from canopy_kernels.gram_table import find_context
from canopy_kernels.suffix_table import empty_key, latest_occurrence, next_key

MISTRUST = 0.65
DECAY = 0.9
MAX_AGE = 8  # older occurrences add nothing to a blend
LEAST_REST = 0.25  # what longer matches leave open below this is not worth the time
MAX_OCCURRENCES = 32  # latest ones that are looked at, of each n
MAX_GRAM_FOLLOWERS = 8
MAX_CANDIDATES = 48
MAX_OFFERED = 16  # of the candidates, the likeliest
LONGEST_MATCH = 8
LONGEST_GRAM = 4

_MATCH = 1  # one-hot: longest match that the candidate followed
_NODE_MATCH = _MATCH + LONGEST_MATCH  # one-hot: longest match of the node
_MATCH_SHARE = _NODE_MATCH + LONGEST_MATCH  # log-odds among the followers of that match
_MATCH_TOTAL = _MATCH_SHARE + 1  # log of their number
_MATCH_LATEST = _MATCH_TOTAL + 1  # it followed the latest of them
_MATCH_BLEND = _MATCH_LATEST + 1  # log-odds of the sequence's estimate
_GRAM = _MATCH_BLEND + 1  # the same for the store
_NODE_GRAM = _GRAM + LONGEST_GRAM
_GRAM_SHARE = _NODE_GRAM + LONGEST_GRAM
_GRAM_TOTAL = _GRAM_SHARE + 1
_GRAM_BLEND = _GRAM_TOTAL + 1
_BOTH = _GRAM_BLEND + 1  # in the sequence and in the store
_DEPTH = _BOTH + 1
_DRAFTED = _DEPTH + 1  # a drafter model offers it
_DRAFTED_ODDS = _DRAFTED + 1  # log-odds of its probability
_DRAFTED_RANK = _DRAFTED_ODDS + 1  # log of 1 + its rank
NUM_FEATURES = _DRAFTED_RANK + 1

MATCH_FEATURES = slice(_MATCH, _NODE_MATCH)  # any of them: known from the sequence
GRAM_FEATURES = slice(_GRAM, _NODE_GRAM)  # any of them: known from the store

FEATURES = (
    "one",
    *(f"match_{n + 1}" for n in range(LONGEST_MATCH)),
    *(f"node_match_{n + 1}" for n in range(LONGEST_MATCH)),
    "match_share",
    "match_total",
    "match_latest",
    "match_blend",
    *(f"gram_{n + 1}" for n in range(LONGEST_GRAM)),
    *(f"node_gram_{n + 1}" for n in range(LONGEST_GRAM)),
    "gram_share",
    "gram_total",
    "gram_blend",
    "both",
    "depth",
    "drafted",
    "drafted_odds",
    "drafted_rank",
)


class Drafted(NamedTuple):
    """Candidates of a drafter model, the likeliest first."""

    token_ids: np.ndarray  # int32 [n], distinct
    log_probs: np.ndarray  # float32 [n]


def nothing_drafted() -> Drafted:
    """Of a tree without a drafter model."""
    return Drafted(np.zeros(0, np.int32), np.zeros(0, np.float32))


class Candidates(NamedTuple):
    """What was found; [MAX_CANDIDATES] each, the first ones filled."""

    token_ids: np.ndarray  # int32
    match: np.ndarray  # int32 longest n, 0: none
    match_count: np.ndarray  # float64 among its followers
    match_total: np.ndarray  # float64
    is_latest: np.ndarray  # float64
    match_blend: np.ndarray  # float64
    gram: np.ndarray  # int32
    gram_count: np.ndarray  # float64
    gram_total: np.ndarray  # float64
    gram_blend: np.ndarray  # float64
    draft_rank: np.ndarray  # int32, -1: none


@njit(cache=True, nogil=True)
def continuations(suffixes, grams, drafted, path, depth, weights, min_match):  # type: ignore[no-untyped-def]
    """Candidates after a path, the likeliest first.

    path: int32 [n], the last tokens of sequence and path, LONGEST_MATCH at most. depth: of the
    candidates, 1 below the anchor. weights: float64 [NUM_FEATURES], or none.
    Returns int32 [k] token ids, float64 [k] log acceptance and the entropy in nats of all that
    was found.
    """
    found, num, longest, rest = _find(suffixes, grams, drafted, path, min_match)
    acceptance = np.empty(num)
    if len(weights):
        rows = _features(found, num, longest, drafted, depth)
        _choice(rows, weights, acceptance)
    else:
        for i in range(num):
            acceptance[i] = found.match_blend[i] + rest * found.gram_blend[i]
    order = np.argsort(-acceptance, kind="mergesort")
    kept = order[: np.count_nonzero(acceptance > 0.0)]
    logs = np.log(acceptance[kept])
    nats = -np.sum(acceptance[kept] * logs)
    return found.token_ids[kept[:MAX_OFFERED]], logs[:MAX_OFFERED], nats


@njit(cache=True, nogil=True)
def candidate_features(suffixes, grams, drafted, path, depth, min_match):  # type: ignore[no-untyped-def]
    """Token ids int32 [k] and features float64 [k, NUM_FEATURES] of all candidates, as found."""
    found, num, longest, _ = _find(suffixes, grams, drafted, path, min_match)
    return found.token_ids[:num].copy(), _features(found, num, longest, drafted, depth)


@njit(cache=True, nogil=True)
def _find(suffixes, grams, drafted, path, min_match):  # type: ignore[no-untyped-def]
    found = Candidates(
        np.zeros(MAX_CANDIDATES, np.int32),
        np.zeros(MAX_CANDIDATES, np.int32),
        np.zeros(MAX_CANDIDATES),
        np.zeros(MAX_CANDIDATES),
        np.zeros(MAX_CANDIDATES),
        np.zeros(MAX_CANDIDATES),
        np.zeros(MAX_CANDIDATES, np.int32),
        np.zeros(MAX_CANDIDATES),
        np.zeros(MAX_CANDIDATES),
        np.zeros(MAX_CANDIDATES),
        np.full(MAX_CANDIDATES, -1, np.int32),
    )
    keys = np.empty(len(path), np.uint64)
    key = empty_key()
    for n in range(len(path)):
        key = next_key(key, path[len(path) - 1 - n])
        keys[n] = key
    num = _draft(drafted, found)
    num, longest_match, rest = _match(suffixes, keys, min_match, found, num)
    num, longest_gram = _ask_store(grams, keys, found, num)
    return found, num, (longest_match, longest_gram), rest


@njit(cache=True, nogil=True)
def _place_of(token, found, num):  # type: ignore[no-untyped-def]
    """(place of a candidate, number of candidates); place -1 where there is no room."""
    for i in range(num):
        if found.token_ids[i] == token:
            return i, num
    if num == MAX_CANDIDATES:
        return -1, num
    found.token_ids[num] = token
    return num, num + 1


@njit(cache=True, nogil=True)
def _draft(drafted, found):  # type: ignore[no-untyped-def]
    num = min(len(drafted.token_ids), MAX_CANDIDATES // 2)
    for rank in range(num):
        found.token_ids[rank] = drafted.token_ids[rank]
        found.draft_rank[rank] = rank
    return num


@njit(cache=True, nogil=True)
def _match(suffixes, keys, min_match, found, num):  # type: ignore[no-untyped-def]
    """Followers in the sequence; (number of candidates, longest match, what is left open)."""
    longest, rest = 0, 1.0
    for n in range(min(len(keys), len(suffixes.previous)), min_match - 1, -1):
        place = latest_occurrence(suffixes, keys[n - 1])
        if place < 0:
            continue
        longest = max(longest, n)
        total, blend_total = _count_occurrences(suffixes, place, n)
        left = rest * MISTRUST**n
        weight, age = (rest - left) / blend_total, 0
        while place >= 0 and age < MAX_OCCURRENCES:
            i, num = _place_of(suffixes.token_ids[place + 1], found, num)
            if i >= 0:
                if found.match[i] == 0:
                    found.match[i], found.match_total[i] = n, total
                    found.is_latest[i] = 1.0 if age == 0 else 0.0
                if found.match[i] == n:
                    found.match_count[i] += 1.0
                if age < MAX_AGE and rest >= LEAST_REST:
                    found.match_blend[i] += weight * DECAY**age
            place = suffixes.previous[n - 1, place]
            age += 1
        rest = left if rest >= LEAST_REST else rest
    return num, longest, rest


@njit(cache=True, nogil=True)
def _count_occurrences(suffixes, place, n):  # type: ignore[no-untyped-def]
    """Occurrences that are looked at, and their weight in a blend."""
    total, weight = 0, 0.0
    while place >= 0 and total < MAX_OCCURRENCES:
        if total < MAX_AGE:
            weight += DECAY**total
        total += 1
        place = suffixes.previous[n - 1, place]
    return total, weight


@njit(cache=True, nogil=True)
def _ask_store(grams, keys, found, num):  # type: ignore[no-untyped-def]
    """Followers in the store; (number of candidates, longest known n-gram)."""
    longest, rest = 0, 1.0
    for n in range(min(len(keys), LONGEST_GRAM), 0, -1):
        context = find_context(grams, keys[n - 1])
        if context < 0:
            continue
        longest = max(longest, n)
        total, left = grams.totals[context], rest * MISTRUST**n
        first = grams.starts[context]
        end = min(grams.starts[context + 1], first + MAX_GRAM_FOLLOWERS)
        for follower in range(first, end):
            i, num = _place_of(grams.follower_ids[follower], found, num)
            if i >= 0:
                count = grams.follower_counts[follower]
                if found.gram[i] == 0:
                    found.gram[i], found.gram_count[i] = n, count
                    found.gram_total[i] = total
                found.gram_blend[i] += (rest - left) * count / total
        rest = left
    return num, longest


@njit(cache=True, nogil=True)
def _features(found, num, longest, drafted, depth):  # type: ignore[no-untyped-def]
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
            row[_MATCH_BLEND] = _odds(found.match_blend[i])
        if found.gram[i]:
            row[_GRAM + found.gram[i] - 1] = 1.0
            row[_GRAM_SHARE] = _share_odds(found.gram_count[i], found.gram_total[i])
            row[_GRAM_TOTAL] = math.log(found.gram_total[i])
            row[_GRAM_BLEND] = _odds(found.gram_blend[i])
        row[_BOTH] = 1.0 if found.match[i] > 0 and found.gram[i] > 0 else 0.0
        rank = found.draft_rank[i]
        if rank >= 0:
            row[_DRAFTED] = 1.0
            row[_DRAFTED_ODDS] = _odds(math.exp(drafted.log_probs[rank]))
            row[_DRAFTED_RANK] = math.log(1.0 + rank)
    return rows


@njit(inline="always")
def _share_odds(count, total):  # type: ignore[no-untyped-def]
    return math.log((count + 0.25) / (total - count + 0.25))


@njit(inline="always")
def _odds(probability):  # type: ignore[no-untyped-def]
    bounded = min(max(probability, 1e-5), 1.0 - 1e-5)
    return math.log(bounded / (1.0 - bounded))


@njit(cache=True, nogil=True)
def _choice(rows, weights, acceptance):  # type: ignore[no-untyped-def]
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
