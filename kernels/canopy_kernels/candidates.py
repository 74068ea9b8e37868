"""Candidates for the token after a path: what followed the same last tokens before.

Two memories are asked for the tokens that followed the path's last n tokens: the sequence itself
(n up to LONGEST_MATCH) and a store of n-grams (n up to LONGEST_GRAM). A third set of candidates
may come from a drafter model.

Within a memory the estimates of PPM (Cleary and Witten, 1984) blend all n from the longest down:

    estimate(x) = sum over known n of  rest(n) * trust(n) * share(n, x)
    rest(n)     = product over longer known m of 1 - trust(m)     what they leave open
    trust(n)    = 1 - MISTRUST ** n                               a longer match is more telling

share(n, x) is the share of x among the followers, in the sequence weighted by DECAY ** age, where
age counts occurrences from the latest, 0. Estimates never add up to more than 1.
"""

from typing import NamedTuple

import numpy as np
from numba import njit

from canopy_kernels.gram_table import MAX_GRAM_FOLLOWERS, find_context
from canopy_kernels.suffix_table import empty_key, latest_occurrence, next_key

MISTRUST = 0.65
DECAY = 0.9
MAX_AGE = 8  # older occurrences add nothing to a blend
LEAST_REST = 0.25  # what longer matches leave open below this is not worth the time
MAX_OCCURRENCES = 32  # latest ones that are looked at, of each n
MAX_CANDIDATES = 48
LONGEST_MATCH = 8
LONGEST_GRAM = 4


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
    counts: np.ndarray  # float64 [MAX_CANDIDATES + 1, 2, LONGEST_GRAM] by sequence or store, and n


@njit(cache=True, nogil=True)
def find_candidates(suffixes, grams, drafted, path, min_match):  # type: ignore[no-untyped-def]
    """(Candidates, their number, (longest match, longest n-gram), what matches leave open)."""
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
        np.zeros((MAX_CANDIDATES + 1, 2, LONGEST_GRAM)),  # the totals of the node come last
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
        if n <= LONGEST_GRAM:
            found.counts[-1, 0, n - 1] = total
        while place >= 0 and age < MAX_OCCURRENCES:
            i, num = _place_of(suffixes.token_ids[place + 1], found, num)
            if i >= 0:
                if found.match[i] == 0:
                    found.match[i], found.match_total[i] = n, total
                    found.is_latest[i] = 1.0 if age == 0 else 0.0
                if found.match[i] == n:
                    found.match_count[i] += 1.0
                if n <= LONGEST_GRAM:
                    found.counts[i, 0, n - 1] += 1.0
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
        found.counts[-1, 1, n - 1] = total
        end = min(grams.starts[context + 1], first + MAX_GRAM_FOLLOWERS)
        for follower in range(first, end):
            i, num = _place_of(grams.follower_ids[follower], found, num)
            if i >= 0:
                count = grams.follower_counts[follower]
                found.counts[i, 1, n - 1] = count
                if found.gram[i] == 0:
                    found.gram[i], found.gram_count[i] = n, count
                    found.gram_total[i] = total
                found.gram_blend[i] += (rest - left) * count / total
        rest = left
    return num, longest
