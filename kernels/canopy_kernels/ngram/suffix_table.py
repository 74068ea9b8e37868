"""Where each n-gram of a growing token sequence stood before, for n from 1 to N.

An n-gram is found by a 64-bit key, chained backwards over its tokens, in a table with open
addressing; occurrences of one n-gram are linked from the latest to the earliest. Two n-grams that
share a key would only make a worse proposal, and practically never do. Keys are part of the format
of stored n-grams: see canopy_kernels.ngram.ngram_table.
"""

from typing import NamedTuple

import numpy as np
from numba import njit

_FIRST_KEY = np.uint64(0x243F6A8885A308D3)
_FACTOR = np.uint64(0x9E3779B97F4A7C15)
_SHIFT = np.uint64(32)
_FREE = np.uint64(0)  # the key of an unused entry
NONE = -1


class SuffixTable(NamedTuple):
    """n-grams that end before the last token, so that what followed them is known."""

    token_ids: np.ndarray  # int32 [capacity], the sequence in front
    keys: np.ndarray  # uint64 [entries], a power of two
    latest: np.ndarray  # int32 [entries] place of the last token of the latest occurrence
    previous: np.ndarray  # int32 [N, capacity] the occurrence before the one that ends here, or -1


def new_suffix_table(capacity: int, max_match: int) -> SuffixTable:
    """An empty table for `capacity` tokens."""
    entries = 1 << (2 * capacity * max_match - 1).bit_length()
    return SuffixTable(
        np.zeros(capacity, np.int32),
        np.zeros(entries, np.uint64),
        np.zeros(entries, np.int32),
        np.full((max_match, capacity), NONE, np.int32),
    )


@njit(inline="always")
def next_key(key, token):
    """The key of an n-gram from that of its last n - 1 tokens, and its first token."""
    key = (key ^ np.uint64(token + 1)) * _FACTOR
    key = key ^ (key >> _SHIFT)
    return key if key != _FREE else _FACTOR


@njit(inline="always")
def empty_key():
    """The key of no token."""
    return _FIRST_KEY


@njit(cache=True, nogil=True)
def append(table, num_tokens, token_ids):
    """Put tokens behind the first `num_tokens`; there is room for them."""
    max_match = len(table.previous)
    for i in range(len(token_ids)):
        end = num_tokens + i  # what follows the n-grams that end at end - 1
        table.token_ids[end] = token_ids[i]
        key = empty_key()
        for n in range(min(max_match, end)):
            key = next_key(key, table.token_ids[end - 1 - n])
            entry = find_entry(table, key)
            if table.keys[entry] == _FREE:
                table.keys[entry] = key
            else:
                table.previous[n, end - 1] = table.latest[entry]
            table.latest[entry] = end - 1


@njit(cache=True, nogil=True)
def find_entry(table, key):
    """The entry of a key, or the free one where it belongs."""
    mask = np.uint64(len(table.keys) - 1)
    entry = key & mask
    while table.keys[entry] != _FREE and table.keys[entry] != key:
        entry = (entry + np.uint64(1)) & mask
    return entry


@njit(cache=True, nogil=True)
def latest_occurrence(table, key):
    """Place of the last token of an n-gram's latest occurrence that was followed, or -1."""
    entry = find_entry(table, key)
    return table.latest[entry] if table.keys[entry] == key else NONE
