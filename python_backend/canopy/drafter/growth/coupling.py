"""Deterministic children, ranked with the noise that the target will choose its token by.

    score(x) = log acceptance(x) + c * G(x)        G: Gumbel noise of the seed and the position

The noise is known before the target's distribution is: of two tokens that it wants alike, it will
take the one with more of it. It moves acceptance between the candidates of a node and none in or
out.
"""

from collections.abc import Callable

import numpy as np

from canopy.drafter.growth.best_first import Continuations
from canopy.drafter.source import DraftSequence
from canopy.sampling import Acceptance
from canopy_kernels.sampling.noise import gumbel


def coupled(
    continuations_of: Callable[[list[int]], Continuations], sequence: DraftSequence, coupling: float
) -> Callable[[list[int]], Continuations]:
    """The same continuations, ranked anew where the sequence is sampled by coupled noise."""
    if sequence.params.mode is not Acceptance.COUPLED:
        return continuations_of
    seed, anchor = sequence.params.seed, len(sequence.token_ids)

    def continuations(path: list[int]) -> Continuations:
        found = continuations_of(path)
        if not found.token_ids:
            return found
        token_ids, logs = np.array(found.token_ids, np.int32), np.array(found.log_probs)
        scores = logs + coupling * gumbel(seed, anchor + len(path), token_ids)
        weights = np.exp(scores - scores.max())
        order = np.argsort(-weights, kind="stable")
        shares = np.exp(logs).sum() * weights[order] / weights.sum()
        ranked = np.log(np.maximum(shares, 1e-30))
        return Continuations(token_ids[order].tolist(), ranked.tolist(), found.entropy)

    return continuations
