"""What followed the n-grams of a text, as sorted arrays that can lie in a file.

Contexts are found by binary search of the upper half of the key of their n tokens
(ngram.suffix_table); keys of different n lie in one array. Of a million contexts some
hundred share their key with another one; that makes a proposal worse and nothing else.
"""

from typing import NamedTuple

import numpy as np
from numba import njit

from canopy_kernels.ngram.suffix_table import empty_key, next_key

MAX_GRAM_FOLLOWERS = 8
ANSWER_WEIGHT = 3  # of an answer's token in all counts; that of further text is 1


class NgramTable(NamedTuple):
    """C contexts with F followers in all; of each context the most frequent first."""

    keys: np.ndarray  # uint32 [C], ascending
    starts: np.ndarray  # int32 [C + 1] of the context's followers
    totals: np.ndarray  # int32 [C] weight of all that followed the context
    follower_ids: np.ndarray  # uint16 [F], or int32 where that is too narrow
    follower_counts: np.ndarray  # the same


def empty_ngram_table() -> NgramTable:
    """The table that knows nothing."""
    keys, starts, totals = np.zeros(0, np.uint32), np.zeros(1, np.int32), np.zeros(0, np.int32)
    return frozen(
        NgramTable(keys, starts, totals, totals.astype(np.uint16), totals.astype(np.uint16))
    )


def frozen(ngrams: NgramTable) -> NgramTable:
    """Make the arrays read-only as those of a mapped file are, so that all tables compile alike."""
    for array in ngrams:
        array.setflags(write=False)
    return ngrams


def counted_pairs(
    keys: np.ndarray, followers: np.ndarray, counts: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Each pair of context key and follower once, with the sum of its counts; [n] each."""
    order = np.lexsort((followers, keys))
    keys, followers, counts = keys[order], followers[order], counts[order]
    changes = (keys[1:] != keys[:-1]) | (followers[1:] != followers[:-1])
    starts = np.flatnonzero(np.append(np.ones(min(len(keys), 1), bool), changes))
    sums = np.add.reduceat(counts, starts) if len(starts) else counts
    return keys[starts], followers[starts], sums


def ranked_grams(
    keys: np.ndarray,
    followers: np.ndarray,
    counts: np.ndarray,
    least_total: int = 1,
    rest: tuple[np.ndarray, np.ndarray] | None = None,
) -> NgramTable:
    """The table of n pairs of context key and follower, each pair once; most frequent ones stay.

    keys: uint32 [n]. followers: int32 [n]. counts: int [n]. rest: keys, some of those above, and
    how often they were followed by what is not among the pairs. Of equal counts the lowest token
    comes first.
    """
    contexts, context_of = np.unique(keys, return_inverse=True)
    totals = np.bincount(context_of, counts, len(contexts)).astype(np.int64)
    if rest is not None:
        totals[np.searchsorted(contexts, rest[0])] += rest[1]
    order = np.lexsort((followers, -counts, context_of))
    context_of, followers, counts = context_of[order], followers[order], counts[order]
    rank = np.arange(len(order)) - np.searchsorted(context_of, context_of)
    kept = (totals[context_of] >= least_total) & (rank < MAX_GRAM_FOLLOWERS)
    known, starts = np.unique(context_of[kept], return_index=True)
    ngrams = NgramTable(
        contexts[known],
        np.append(starts, kept.sum()).astype(np.int32),
        totals[known].astype(np.int32),
        narrowed(followers[kept]),
        narrowed(counts[kept]),
    )
    return frozen(ngrams)


def narrowed(numbers: np.ndarray) -> np.ndarray:
    """Numbers that are not negative as uint16, or as int32 where that cannot hold them."""
    is_narrow = len(numbers) == 0 or numbers.max() <= np.iinfo(np.uint16).max
    return numbers.astype(np.uint16 if is_narrow else np.int32)


@njit(inline="always")
def stored_key(key):
    """Of an n-gram, by its key in a suffix table."""
    return np.uint32(key >> np.uint64(32))


@njit(cache=True, nogil=True)
def find_context(ngrams, key):
    """Index of a context by its `stored_key`, or -1."""
    low, high = 0, len(ngrams.keys)
    while low < high:
        middle = (low + high) // 2
        if ngrams.keys[middle] < key:
            low = middle + 1
        else:
            high = middle
    return low if low < len(ngrams.keys) and ngrams.keys[low] == key else -1


@njit(cache=True, nogil=True)
def context_keys(token_ids, n):
    """Key of the n tokens before each token; uint32 [len - n], for positions n and up."""
    keys = np.empty(max(len(token_ids) - n, 0), np.uint32)
    for index in range(len(keys)):
        key = empty_key()
        for i in range(n):
            key = next_key(key, token_ids[index + n - 1 - i])
        keys[index] = stored_key(key)
    return keys
