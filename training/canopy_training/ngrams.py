"""Counts what followed the n-grams of a corpus's answers, for the n-gram store.

A context is the n tokens before an answer token; the first ones reach into the prompt. Long
contexts seen once are left out, and of each context the most frequent followers stay. Answers held
out are not counted: on them the weights are fitted, see canopy_training.survival.
"""

from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np

from canopy.stages.sources.ngram_store import NgramStore
from canopy_kernels.candidates import LONGEST_GRAM
from canopy_kernels.gram_table import (
    GramTable,
    context_keys,
    counted_pairs,
    frozen,
    narrowed,
    ranked_grams,
)
from canopy_training.corpus import Answer, Corpus

LEAST_TOTALS = (1, 1, 2, 2)  # how often a context of 1, 2, ... tokens must have come
_FOLD = 10


def is_held_out(number: int) -> bool:
    """One pair of a greedy and a sampled answer in ten."""
    return number // 2 % _FOLD == _FOLD - 1


def count_corpus(corpus: Corpus) -> NgramStore:
    """A store without weights, of all answers that are not held out."""
    return NgramStore(count(a for a in corpus if not is_held_out(a.number)), np.zeros(0))


def count(answers: Iterable[Answer]) -> GramTable:
    """The table of all answers."""
    texts = [(answer.token_ids, len(answer.prompt_ids)) for answer in answers]
    return _joined([_counted(texts, n) for n in range(1, LONGEST_GRAM + 1)])


def write_store(corpus: Corpus, path: Path, vocabulary: str) -> NgramStore:
    """Count a corpus into a file; return what was counted."""
    store = count_corpus(corpus)
    path.parent.mkdir(parents=True, exist_ok=True)
    store.save(path, vocabulary)
    return store


def _counted(texts: Sequence[tuple[np.ndarray, int]], n: int) -> GramTable:
    """Of contexts of n tokens. texts: token ids, and how many of them are the prompt's."""
    long = [(text, first) for text, first in texts if first >= n]
    keys = np.concatenate(
        [np.zeros(0, np.uint32), *(context_keys(text[first - n :], n) for text, first in long)]
    )
    followers = np.concatenate([np.zeros(0, np.int32), *(text[first:] for text, first in long)])
    pairs = counted_pairs(keys, followers, np.ones(len(keys), np.int64))
    return ranked_grams(*pairs, least_total=LEAST_TOTALS[n - 1])


def _joined(parts: Sequence[GramTable]) -> GramTable:
    """One table, its contexts in the order of their keys."""
    keys = np.concatenate([part.keys for part in parts])
    order = np.argsort(keys, kind="stable")
    lengths = np.concatenate([np.diff(part.starts) for part in parts])
    firsts = np.cumsum(lengths) - lengths
    starts = np.append(0, np.cumsum(lengths[order]))
    # Followers move with their contexts.
    moved = np.arange(starts[-1]) + np.repeat(firsts[order] - starts[:-1], lengths[order])
    follower_ids, counts, totals = (
        np.concatenate([getattr(part, name) for part in parts])
        for name in ("follower_ids", "follower_counts", "totals")
    )
    grams = GramTable(
        keys[order],
        starts.astype(np.int32),
        totals[order].astype(np.int32),
        narrowed(follower_ids[moved]),
        narrowed(counts[moved]),
    )
    return frozen(grams)
