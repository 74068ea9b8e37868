"""The n-gram store of a corpus's answers.

Answers held out are not counted: on them the weights are fitted, see
canopy_training.lookup.survival.
"""

import json
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np

from canopy.drafter.lookup import counting
from canopy.drafter.lookup.ngram_store import NgramStore
from canopy.text.tokenizer import Tokenizer
from canopy_kernels.ngram.ngram_table import NgramTable
from canopy_training.corpus.corpus import Answer, Corpus

_FOLD = 10


def is_held_out(number: int) -> bool:
    """One pair of a greedy and a sampled answer in ten."""
    return number // 2 % _FOLD == _FOLD - 1


def count(answers: Iterable[Answer], further: Sequence[np.ndarray] = ()) -> NgramTable:
    """The table of all answers, and of further texts, int32 token ids each."""
    texts = [(answer.token_ids, len(answer.prompt_ids)) for answer in answers]
    return counting.count(texts, further)


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
