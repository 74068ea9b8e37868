"""Candidates for the token after a path: what followed the same last tokens before.

Two sources hold what followed the path's last n tokens: the sequence itself
(n up to LONGEST_MATCH) and a store of n-grams (n up to LONGEST_GRAM). A third set of candidates
may come from a drafter model.

One estimate blends all n of the sequence from the longest down, then those of the store:

    estimate(x) = sum over known n of  backoff(n) * lambda(n) * share(n, x)
    backoff(n)  = product of 1 - lambda over all that was blended before

In the sequence share(n, x) is the share of x among the followers, weighted by DECAY ** age, where
age counts occurrences from the latest, 0; lambda falls with the number of different followers
(Witten and Bell, 1991). In the store every follower is discounted by DISCOUNT, and what that
leaves is the back-off mass (Ney, Essen and Kneser, 1994). Estimates never add up to more than 1.
"""

from typing import NamedTuple

import numpy as np
from numba import njit

from canopy_kernels.ngram.ngram_table import find_context, stored_key
from canopy_kernels.ngram.suffix_table import empty_key, latest_occurrence, next_key

DECAY = 0.9
NOVELTY = (8.0, 2.5, 1.2)  # occurrences that a different follower weighs, for n = 1, 2 and more
DISCOUNT = 0.6
MAX_OCCURRENCES = 32  # latest ones that are looked at, of each n
MAX_SEEN = 16
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
    gram: np.ndarray  # int32
    gram_count: np.ndarray  # float64
    gram_total: np.ndarray  # float64
    draft_rank: np.ndarray  # int32, -1: none
    num_seen: np.ndarray  # int32 in the sequence, wherever; MAX_SEEN at most
    estimate: np.ndarray  # float64
    counts: np.ndarray  # float64 [MAX_CANDIDATES + 1, 2, LONGEST_GRAM] by sequence or store, and n


@njit(cache=True, nogil=True)
def find_candidates(suffixes, ngrams, drafted, path, min_match):
    """(Candidates, their number, (longest match, longest n-gram))."""
    found = Candidates(
        np.zeros(MAX_CANDIDATES, np.int32),
        np.zeros(MAX_CANDIDATES, np.int32),
        np.zeros(MAX_CANDIDATES),
        np.zeros(MAX_CANDIDATES),
        np.zeros(MAX_CANDIDATES),
        np.zeros(MAX_CANDIDATES, np.int32),
        np.zeros(MAX_CANDIDATES),
        np.zeros(MAX_CANDIDATES),
        np.full(MAX_CANDIDATES, -1, np.int32),
        np.zeros(MAX_CANDIDATES, np.int32),
        np.zeros(MAX_CANDIDATES),
        np.zeros((MAX_CANDIDATES + 1, 2, LONGEST_GRAM)),  # the totals of the node come last
    )
    keys = np.empty(len(path), np.uint64)
    key = empty_key()
    for n in range(len(path)):
        key = next_key(key, path[len(path) - 1 - n])
        keys[n] = key
    num = _draft(drafted, found)
    num, longest_match, left = _match(suffixes, keys, min_match, found, num)
    num, longest_gram = _ask_store(ngrams, keys, found, num, left)
    for i in range(num):
        found.num_seen[i] = _times_seen(suffixes, found.token_ids[i])
    return found, num, (longest_match, longest_gram)


@njit(cache=True, nogil=True)
def _slot_of(token, found, num):
    """(slot of a candidate, number of candidates); slot -1 where there is no room."""
    for i in range(num):
        if found.token_ids[i] == token:
            return i, num
    if num == MAX_CANDIDATES:
        return -1, num
    found.token_ids[num] = token
    return num, num + 1


@njit(cache=True, nogil=True)
def _draft(drafted, found):
    num = min(len(drafted.token_ids), MAX_CANDIDATES // 2)
    for rank in range(num):
        found.token_ids[rank] = drafted.token_ids[rank]
        found.draft_rank[rank] = rank
    return num


@njit(cache=True, nogil=True)
def _match(suffixes, keys, min_match, found, num):
    """Followers in the sequence; (number of candidates, longest match, what is left open)."""
    longest, left = 0, 1.0
    slots = np.empty(MAX_OCCURRENCES, np.int32)  # among the candidates, of each follower
    weights = np.zeros(MAX_CANDIDATES)
    for n in range(min(len(keys), len(suffixes.previous)), min_match - 1, -1):
        position = latest_occurrence(suffixes, keys[n - 1])
        if position < 0:
            continue
        longest = max(longest, n)
        total, num = _followers(suffixes, position, n, found, num, slots)
        num_kinds, weight, sum_of_weights = 0, 1.0, 0.0
        for age in range(total):
            i = slots[age]
            sum_of_weights += weight
            if i >= 0:
                num_kinds += 1 if weights[i] == 0.0 else 0
                weights[i] += weight
                _note_match(found, i, n, total, age)
            weight *= DECAY
        lam = sum_of_weights / (sum_of_weights + num_kinds * NOVELTY[min(n, len(NOVELTY)) - 1])
        for age in range(total):
            i = slots[age]
            if i >= 0:  # its weight is spent the first time
                found.estimate[i] += left * lam * weights[i] / sum_of_weights
                weights[i] = 0.0
        left *= 1.0 - lam
    return num, longest, left


@njit(cache=True, nogil=True)
def _followers(suffixes, position, n, found, num, slots):
    """Fill in the slots of what followed; (how many followers, number of candidates)."""
    total = 0
    while position >= 0 and total < MAX_OCCURRENCES:
        slots[total], num = _slot_of(suffixes.token_ids[position + 1], found, num)
        position = suffixes.previous[n - 1, position]
        total += 1
    if n <= LONGEST_GRAM:
        found.counts[-1, 0, n - 1] = total
    return total, num


@njit(inline="always")
def _note_match(found, i, n, total, age):
    if found.match[i] == 0:
        found.match[i], found.match_total[i] = n, total
        found.is_latest[i] = 1.0 if age == 0 else 0.0
    if found.match[i] == n:
        found.match_count[i] += 1.0
    if n <= LONGEST_GRAM:
        found.counts[i, 0, n - 1] += 1.0


@njit(cache=True, nogil=True)
def _ask_store(ngrams, keys, found, num, left):
    """Followers in the store; (number of candidates, longest known n-gram)."""
    longest = 0
    for n in range(min(len(keys), LONGEST_GRAM), 0, -1):
        context = find_context(ngrams, stored_key(keys[n - 1]))
        if context < 0:
            continue
        longest = max(longest, n)
        total, observed = ngrams.totals[context], 0.0
        found.counts[-1, 1, n - 1] = total
        for follower in range(ngrams.starts[context], ngrams.starts[context + 1]):
            i, num = _slot_of(ngrams.follower_ids[follower], found, num)
            count = ngrams.follower_counts[follower]
            observed += count - DISCOUNT
            if i >= 0:
                found.counts[i, 1, n - 1] = count
                if found.gram[i] == 0:
                    found.gram[i], found.gram_count[i] = n, count
                    found.gram_total[i] = total
                found.estimate[i] += left * (count - DISCOUNT) / total
        left *= 1.0 - observed / total
    return num, longest


@njit(cache=True, nogil=True)
def _times_seen(suffixes, token):
    """How often a token stands in the sequence, its last occurrence aside; MAX_SEEN at most."""
    position, times = latest_occurrence(suffixes, next_key(empty_key(), token)), 0
    while position >= 0 and times < MAX_SEEN:
        times += 1
        position = suffixes.previous[0, position]
    return times
