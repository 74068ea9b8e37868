"""An n-gram table that takes up what was served.

What a file remembers of earlier runs is counted at the start. Finished answers wait until there
are some; then the table is counted anew with theirs. What was learned is bounded: when it is full,
the older half of it is forgotten.
"""

import numpy as np

from canopy.drafter.lookup.counting import Text
from canopy.drafter.lookup.learned_answers import LearnedAnswers
from canopy_kernels.ngram.candidates import LONGEST_GRAM
from canopy_kernels.ngram.ngram_table import (
    ANSWER_WEIGHT,
    NgramTable,
    context_keys,
    counted_pairs,
    ranked_grams,
)

_ANSWERS_AT_ONCE = 64
MAX_TOKENS = 1 << 18


class OnlineNgrams:
    """Starts as a stored table, which is never changed."""

    def __init__(
        self,
        stored: NgramTable,
        answers_at_once: int = _ANSWERS_AT_ONCE,
        max_tokens: int = MAX_TOKENS,
        file: LearnedAnswers | None = None,
    ) -> None:
        """file: remembers the answers over restarts; none: they are forgotten."""
        self._stored = stored
        self._answers_at_once = answers_at_once
        self._max_tokens = max_tokens
        self._file = file
        self._texts: list[Text] = list(file.texts) if file else []
        self.ngrams = merged(stored, self._texts) if self._texts else stored
        self._num_waiting = 0

    def learn(self, token_ids: np.ndarray, num_prompt: int) -> None:
        """Take up an answer. token_ids: int32, the prompt in front."""
        first = max(num_prompt - LONGEST_GRAM, 0)
        if len(token_ids) > num_prompt:
            text = (token_ids[first:].copy(), num_prompt - first)
            self._texts.append(text)
            if self._file:
                self._file.append(text)
            self._num_waiting += 1
        if self._num_waiting >= self._answers_at_once:
            self._num_waiting = 0
            self._forget()
            self.ngrams = merged(self._stored, self._texts)

    def _forget(self) -> None:
        if sum(len(text) for text, _ in self._texts) > self._max_tokens:
            self._texts = self._texts[len(self._texts) // 2 :]


def merged(stored: NgramTable, texts: list[Text]) -> NgramTable:
    """A stored table with the counts of texts, each with its number of prompt tokens."""
    lengths = np.diff(stored.starts)
    keys, followers = [np.repeat(stored.keys, lengths)], [stored.follower_ids]
    for text, num_prompt in texts:
        for n in range(1, min(LONGEST_GRAM, num_prompt) + 1):
            keys.append(context_keys(text[num_prompt - n :], n))
            followers.append(text[num_prompt:])
    all_keys, stored_counts = np.concatenate(keys), stored.follower_counts.astype(np.int64)
    counts = np.full(len(all_keys), ANSWER_WEIGHT, np.int64)
    counts[: len(stored_counts)] = stored_counts
    pairs = counted_pairs(all_keys, np.concatenate(followers), counts)
    listed = np.add.reduceat(stored_counts, stored.starts[:-1]) if len(stored.keys) else 0
    return ranked_grams(*pairs, rest=(stored.keys, stored.totals - listed))
