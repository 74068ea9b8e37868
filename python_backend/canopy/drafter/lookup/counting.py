"""Counts what followed the n-grams of texts.

A context is the n tokens before a token of an answer; the first ones reach into the prompt. Long
contexts seen once are left out, and of each context the most frequent followers stay. Further text,
such as prompts that were not answered, counts less, and not at all in the longest contexts.
"""

from collections.abc import Sequence

import numpy as np

from canopy_kernels.ngram.candidates import LONGEST_GRAM
from canopy_kernels.ngram.ngram_table import (
    ANSWER_WEIGHT,
    NgramTable,
    context_keys,
    counted_pairs,
    frozen,
    narrowed,
    ranked_grams,
)

LEAST_TOTALS = (1, 1, 2, 2)  # how often answers must have a context of 1, 2, ... tokens
LONGEST_FURTHER = 3  # tokens of a context in further text

Text = tuple[np.ndarray, int]  # token ids int32, and how many of them are the prompt's


def count(
    texts: Sequence[Text],
    further: Sequence[np.ndarray] = (),
    least_totals: Sequence[int] = LEAST_TOTALS,
) -> NgramTable:
    """The table of all answers, and of further texts, int32 token ids each."""
    lengths = range(1, LONGEST_GRAM + 1)
    return _joined([_counted(texts, further, n, least_totals[n - 1]) for n in lengths])


def _counted(
    texts: Sequence[Text], further: Sequence[np.ndarray], n: int, least: int
) -> NgramTable:
    """Of contexts of n tokens that answers have `least` times."""
    own = [text[first - n :] for text, first in texts if first >= n]
    others = [text for text in further if len(text) > n] if n <= LONGEST_FURTHER else []
    keys = [np.zeros(0, np.uint32), *(context_keys(text, n) for text in (*own, *others))]
    followers = [np.zeros(0, np.int32), *(text[n:] for text in (*own, *others))]
    counts = np.ones(sum(map(len, keys)), np.int64)
    counts[: sum(len(text) - n for text in own)] = ANSWER_WEIGHT
    known, after, sums = counted_pairs(np.concatenate(keys), np.concatenate(followers), counts)
    # What came in further text alone has to come as often as counts for an answer.
    kept = sums >= (ANSWER_WEIGHT if n > 1 else 1)
    least_total = ANSWER_WEIGHT * (least - 1) + 1
    return ranked_grams(known[kept], after[kept], sums[kept], least_total)


def _joined(parts: Sequence[NgramTable]) -> NgramTable:
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
    ngrams = NgramTable(
        keys[order],
        starts.astype(np.int32),
        totals[order].astype(np.int32),
        narrowed(follower_ids[moved]),
        narrowed(counts[moved]),
    )
    return frozen(ngrams)
