"""Counts what followed the n-grams of a corpus's answers, for the n-gram store.

A context is the n tokens before an answer token; the first ones reach into the prompt. What was
seen once is left out, and of each context the most frequent followers stay. Answers held out are
not counted: on them the weights are fitted, see canopy_training.survival.
"""

from collections.abc import Iterable
from pathlib import Path

import numpy as np

from canopy.stages.sources.ngram_store import NgramStore
from canopy_kernels.continuations import LONGEST_GRAM, MAX_GRAM_FOLLOWERS
from canopy_kernels.gram_table import GramTable, context_keys
from canopy_training.corpus import Answer, Corpus

LEAST_COUNT = 2
_FOLD = 10


def is_held_out(number: int) -> bool:
    """One pair of a greedy and a sampled answer in ten."""
    return number // 2 % _FOLD == _FOLD - 1


def count_corpus(corpus: Corpus) -> NgramStore:
    """A store without weights, of all answers that are not held out."""
    return NgramStore(count(a for a in corpus if not is_held_out(a.number)), np.zeros(0))


def count(answers: Iterable[Answer]) -> GramTable:
    """The table of all answers."""
    keys: list[np.ndarray] = []
    followers: list[np.ndarray] = []
    for answer in answers:
        text, num_prompt = answer.token_ids, len(answer.prompt_ids)
        for n in range(1, min(LONGEST_GRAM, num_prompt) + 1):
            keys.append(context_keys(text[num_prompt - n :], n))
            followers.append(text[num_prompt:])
    if not keys:
        return GramTable(*_as_arrays([], [0], [], [], []))
    return _table(np.concatenate(keys), np.concatenate(followers))


def _table(keys: np.ndarray, followers: np.ndarray) -> GramTable:
    """keys: uint64 [n]. followers: int32 [n], one for each."""
    order = np.lexsort((followers, keys))
    keys, followers = keys[order], followers[order]
    is_first = np.ones(len(keys), bool)
    is_first[1:] = (keys[1:] != keys[:-1]) | (followers[1:] != followers[:-1])
    places = np.flatnonzero(is_first)
    counts = np.diff(np.append(places, len(keys)))
    keys, followers = keys[places], followers[places]
    contexts, context_of = np.unique(keys, return_inverse=True)
    totals = np.bincount(context_of, counts).astype(np.int64)
    # Most frequent first within a context; of equal ones the lowest token.
    order = np.lexsort((followers, -counts, context_of))
    context_of, followers, counts = context_of[order], followers[order], counts[order]
    rank = np.arange(len(order)) - np.searchsorted(context_of, context_of)
    kept = (counts >= LEAST_COUNT) & (rank < MAX_GRAM_FOLLOWERS)
    known, starts = np.unique(context_of[kept], return_index=True)
    return GramTable(
        *_as_arrays(
            contexts[known],
            np.append(starts, kept.sum()),
            totals[known],
            followers[kept],
            counts[kept],
        )
    )


def _as_arrays(*columns: object) -> list[np.ndarray]:
    dtypes = (np.uint64, np.int32, np.int32, np.int32, np.int32)
    return [np.asarray(column, dtype) for column, dtype in zip(columns, dtypes, strict=True)]


def write_store(corpus: Corpus, path: Path, vocabulary: str) -> NgramStore:
    """Count a corpus into a file; return what was counted."""
    store = count_corpus(corpus)
    path.parent.mkdir(parents=True, exist_ok=True)
    store.save(path, vocabulary)
    return store
