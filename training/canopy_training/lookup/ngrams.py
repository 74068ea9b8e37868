"""Counts what followed the n-grams of a corpus's answers, for the n-gram store.

A context is the n tokens before an answer token; the first ones reach into the prompt. Long
contexts seen once are left out, and of each context the most frequent followers stay. Further text,
such as prompts that were not answered, counts less, and not at all in the longest contexts. Answers
held out are not counted: on them the weights are fitted, see canopy_training.lookup.survival.
"""

import json
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np

from canopy.drafter.lookup.ngram_store import NgramStore
from canopy.text.tokenizer import Tokenizer
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
from canopy_training.corpus.corpus import Answer, Corpus

LEAST_TOTALS = (1, 1, 2, 2)  # how often answers must have a context of 1, 2, ... tokens
LONGEST_FURTHER = 3  # tokens of a context in further text
_FOLD = 10


def is_held_out(number: int) -> bool:
    """One pair of a greedy and a sampled answer in ten."""
    return number // 2 % _FOLD == _FOLD - 1


def count(answers: Iterable[Answer], further: Sequence[np.ndarray] = ()) -> NgramTable:
    """The table of all answers, and of further texts, int32 token ids each."""
    texts = [(answer.token_ids, len(answer.prompt_ids)) for answer in answers]
    return _joined([_counted(texts, further, n) for n in range(1, LONGEST_GRAM + 1)])


def further_texts(
    prompts: Path, corpus: Iterable[Answer], tokenizer: Tokenizer
) -> list[np.ndarray]:
    """Prompts of a file, JSON lines with `prompt`, but for those whose answers are held out."""
    held_out = [a.prompt_ids.tolist() for a in corpus if is_held_out(a.number)]
    hidden = "\n".join(map(tokenizer.decode, held_out))
    with prompts.open(encoding="utf-8", newline="\n") as lines:
        texts = [json.loads(line)["prompt"] for line in lines]
    return [np.array(tokenizer.encode(t), np.int32) for t in texts if t.strip() not in hidden]


def write_store(
    corpus: Corpus, path: Path, vocabulary: str, further: Sequence[np.ndarray] = ()
) -> NgramStore:
    """Count the answers that are not held out into a file; return what was counted."""
    counted = (answer for answer in corpus if not is_held_out(answer.number))
    store = NgramStore(count(counted, further), np.zeros(0))
    path.parent.mkdir(parents=True, exist_ok=True)
    store.save(path, vocabulary)
    return store


def _counted(
    texts: Sequence[tuple[np.ndarray, int]], further: Sequence[np.ndarray], n: int
) -> NgramTable:
    """Of contexts of n tokens. texts: token ids, and how many of them are the prompt's."""
    own = [text[first - n :] for text, first in texts if first >= n]
    others = [text for text in further if len(text) > n] if n <= LONGEST_FURTHER else []
    keys = [np.zeros(0, np.uint32), *(context_keys(text, n) for text in (*own, *others))]
    followers = [np.zeros(0, np.int32), *(text[n:] for text in (*own, *others))]
    counts = np.ones(sum(map(len, keys)), np.int64)
    counts[: sum(len(text) - n for text in own)] = ANSWER_WEIGHT
    known, after, sums = counted_pairs(np.concatenate(keys), np.concatenate(followers), counts)
    # What came in further text alone has to come as often as counts for an answer.
    kept = sums >= (ANSWER_WEIGHT if n > 1 else 1)
    least_total = ANSWER_WEIGHT * (LEAST_TOTALS[n - 1] - 1) + 1
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
