"""Answers of a corpus that nobody wrote."""

from collections.abc import Sequence

import numpy as np

from canopy_training.corpus.corpus import Answer


def answer_of(prompt: Sequence[int], answer: Sequence[int], number: int = 0) -> Answer:
    """An answer with its tokens alone."""
    return Answer(
        number=number,
        is_sampled=bool(number % 2),
        prompt_ids=np.array(prompt, np.int32),
        answer_ids=np.array(answer, np.int32),
        hidden_states=np.zeros((len(prompt) + len(answer) - 1, 1, 2), np.float16),
        top_ids=np.array(answer, np.int32)[:, None],
        top_log_probs=np.zeros((len(answer), 1), np.float16),
    )
