"""Lookup: continuations of the sequence's own suffix, several of them as one tree.

The children of a node are the tokens that followed earlier occurrences of the longest suffix of
context + path, and of shorter ones while enough is left open. The acceptance of an edge is
estimated by blending from the longest match down, as PPM does (Cleary and Witten, 1984):

    estimate(x) = sum over matched n of  rest(n) * trust(n) * share(n, x)
    rest(n)     = product over longer matches m of 1 - trust(m)      what they leave open
    trust(n)    = 1 - MISTRUST ** n                                  a longer match is more telling
    share(n, x) = sum over followers equal to x of DECAY ** age  /  sum over all followers

where age counts the occurrences of the n-gram from the latest, 0. So frequent and recent
continuations both count, and the estimates of a node's children never add up to more than 1.
"""

import math
import operator
from collections.abc import Callable, Iterable, Sequence

from canopy.stages.sources.best_first import BestFirst, Continuations
from canopy.stages.sources.source import DraftSequence, DraftTask
from canopy.stages.sources.suffix_index import SuffixIndex
from canopy.tree import Proposal

MISTRUST = 0.65
DECAY = 0.9
MAX_FOLLOWERS = 8  # older occurrences add nothing
LEAST_REST = 0.25  # what longer matches leave open below this is not worth the time


class LookupSource:
    """No model: an index over each sequence's prompt and answer."""

    def __init__(self, min_match: int, max_match: int) -> None:
        self._min_match = min_match
        self._max_match = max_match
        self._indexes: dict[int, SuffixIndex] = {}

    def propose(self, tasks: Sequence[DraftTask]) -> list[Proposal]:
        """One tree per task, a deterministic function of the sequence's tokens."""
        return [self._propose(task) for task in tasks]

    def finish(self, sequence_id: int) -> None:
        """Drop the sequence's index."""
        self._indexes.pop(sequence_id, None)

    def _propose(self, task: DraftTask) -> Proposal:
        return BestFirst(task, self.continuations_of(task.sequence)).grow()

    def continuations_of(self, sequence: DraftSequence) -> Callable[[list[int]], Continuations]:
        """What is known below the anchor, by path."""
        index = self._index_of(sequence)
        return lambda path: self._continuations(index, path)

    def _index_of(self, sequence: DraftSequence) -> SuffixIndex:
        index = self._indexes.setdefault(sequence.sequence_id, SuffixIndex(self._max_match))
        index.extend(sequence.token_ids[index.num_tokens :])
        return index

    def _continuations(self, index: SuffixIndex, path: list[int]) -> Continuations:
        estimates = estimate(index.followers(index.suffix(path)), self._min_match)
        ranked = sorted(estimates, key=lambda token: (-estimates[token], token))
        log_probs = [math.log(estimates[token]) for token in ranked]
        nats = -sum(map(operator.mul, map(estimates.__getitem__, ranked), log_probs))
        return Continuations(ranked, log_probs, nats / math.log(2.0))


def estimate(matches: Iterable[tuple[int, list[int]]], min_match: int) -> dict[int, float]:
    """Estimated acceptance of every known continuation; they sum to less than 1.

    matches: (n, tokens that followed the n-gram, oldest first), longest n first.
    """
    estimates: dict[int, float] = {}
    rest = 1.0
    for length, followers in matches:
        if length < min_match or rest < LEAST_REST:
            break
        left = rest * MISTRUST**length
        recent = followers[: -MAX_FOLLOWERS - 1 : -1]
        weight = (rest - left) / _TOTAL_WEIGHT[len(recent)]
        for token, age_weight in zip(recent, _AGE_WEIGHT, strict=False):
            estimates[token] = estimates.get(token, 0.0) + weight * age_weight
        rest = left
    return estimates


_AGE_WEIGHT = [DECAY**age for age in range(MAX_FOLLOWERS)]
_TOTAL_WEIGHT = [sum(_AGE_WEIGHT[:n]) for n in range(MAX_FOLLOWERS + 1)]
