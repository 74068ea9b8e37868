"""What followed the n-grams of a text, as sorted arrays that can lie in a file.

Contexts are found by binary search of the key of their n tokens (canopy_kernels.suffix_table);
keys of different n lie in one array, since they practically never coincide.
"""

from typing import NamedTuple

import numpy as np
from numba import njit

from canopy_kernels.suffix_table import empty_key, next_key


class GramTable(NamedTuple):
    """C contexts with F followers in all; of each context the most frequent first."""

    keys: np.ndarray  # uint64 [C], ascending
    starts: np.ndarray  # int32 [C + 1] of the context's followers
    totals: np.ndarray  # int32 [C] how often the context was followed by anything
    follower_ids: np.ndarray  # int32 [F]
    follower_counts: np.ndarray  # int32 [F]


def no_grams() -> GramTable:
    """The table that knows nothing; read-only as a mapped file is, so that both compile alike."""
    keys, starts, counts = np.zeros(0, np.uint64), np.zeros(1, np.int32), np.zeros(0, np.int32)
    for array in (keys, starts, counts):
        array.setflags(write=False)
    return GramTable(keys, starts, counts, counts, counts)


@njit(cache=True, nogil=True)
def find_context(grams, key):  # type: ignore[no-untyped-def]
    """Index of a context, or -1."""
    low, high = 0, len(grams.keys)
    while low < high:
        middle = (low + high) // 2
        if grams.keys[middle] < key:
            low = middle + 1
        else:
            high = middle
    return low if low < len(grams.keys) and grams.keys[low] == key else -1


@njit(cache=True, nogil=True)
def context_keys(token_ids, n):  # type: ignore[no-untyped-def]
    """Key of the n tokens before each token; uint64 [len - n], for places n and up."""
    keys = np.empty(max(len(token_ids) - n, 0), np.uint64)
    for place in range(len(keys)):
        key = empty_key()
        for i in range(n):
            key = next_key(key, token_ids[place + n - 1 - i])
        keys[place] = key
    return keys
