"""The options of a sequence, told to continuations before any node is taken."""

import math
from collections.abc import Callable

import numpy as np

from canopy.drafter.growth.best_first import Continuations
from canopy.drafter.source import DraftSequence
from canopy.logits_processors.candidates import processed_candidates


def processed(
    continuations_of: Callable[[list[int]], Continuations], sequence: DraftSequence
) -> Callable[[list[int]], Continuations]:
    """The same continuations without what cannot follow, and with what must."""
    processor = sequence.processor
    if processor is None:
        return continuations_of

    def continuations(path: list[int]) -> Continuations:
        found = continuations_of(path)
        token_ids, log_probs = processed_candidates(
            processor, path, np.array(found.token_ids, np.int32), np.array(found.log_probs)
        )
        if not len(token_ids):
            return Continuations([], [], 0.0)
        entropy = -float(np.exp(log_probs) @ log_probs) / math.log(2.0)
        return Continuations(token_ids.tolist(), log_probs.tolist(), entropy)

    return continuations
