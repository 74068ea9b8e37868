"""Lookup: continuations known from the sequence itself and from the target's earlier answers.

The children of a node are the tokens that followed earlier occurrences of the suffixes of context
+ path, in the sequence and in the n-gram store: the most recent and the most frequent ones of
several lengths in one tree. What is known of each, and how its acceptance follows from it, is in
canopy_kernels.ngram.continuations.
"""

import math
from collections.abc import Callable, Sequence

import numpy as np

from canopy.config import DrafterConfig
from canopy.drafter.growth.best_first import BestFirst, Continuations
from canopy.drafter.growth.coupling import coupled
from canopy.drafter.growth.options import processed
from canopy.drafter.lookup.ngram_store import NgramStore
from canopy.drafter.lookup.online_ngrams import OnlineNgrams
from canopy.drafter.lookup.suffix_index import SuffixIndex
from canopy.drafter.source import DraftSequence, DraftTask
from canopy.tree import Proposal
from canopy_kernels.ngram.candidates import LONGEST_GRAM, Drafted, nothing_drafted
from canopy_kernels.ngram.continuations import continuations

_NOTHING = nothing_drafted()


class LookupSource:
    """No model: an index over each sequence's prompt and answer, and a store that all share."""

    def __init__(
        self,
        min_match: int,
        max_match: int,
        store: NgramStore | None = None,
        learning: OnlineNgrams | None = None,
        coupling: float = DrafterConfig.coupling,
    ) -> None:
        """min_match, max_match: shortest and longest suffix; LONGEST_MATCH at most.

        learning: takes up finished answers, and stands for the store's table. coupling: see
        canopy.drafter.growth.coupling.
        """
        self._min_match = min_match
        self._max_match = max_match
        self._store = store or NgramStore.empty()
        self._learning = learning
        self._coupling = coupling
        self._joint_weights = np.zeros(0)
        self._indexes: dict[int, SuffixIndex] = {}

    def propose(self, tasks: Sequence[DraftTask]) -> list[Proposal]:
        """One tree per task, a deterministic function of the sequence's tokens."""
        return [self._propose(task) for task in tasks]

    def finish(self, sequence_id: int) -> None:
        """Drop the sequence's index."""
        index = self._indexes.pop(sequence_id, None)
        if index and self._learning:
            self._learning.learn(index.table.token_ids[: index.num_tokens], index.num_given)

    def warm_up(self) -> None:
        """Propose once, so that no request waits until everything is compiled."""
        index = SuffixIndex(self._max_match)
        index.extend([0, 0])
        self._continuations(index, [], _NOTHING)

    def _propose(self, task: DraftTask) -> Proposal:
        known = self.continuations_of(task.sequence)
        allowed = processed(known, task.sequence)
        return BestFirst(task, coupled(allowed, task.sequence, self._coupling)).grow()

    def join(self, weights: np.ndarray) -> None:
        """What candidates are worth where a model has some too, float64 [features]."""
        self._joint_weights = weights

    def continuations_of(
        self,
        sequence: DraftSequence,
        drafted: Callable[[list[int]], Drafted] = lambda path: _NOTHING,
    ) -> Callable[[list[int]], Continuations]:
        """What is known below the anchor, by path; `drafted` adds a model's candidates to it."""
        index = self._index_of(sequence)
        return lambda path: self._continuations(index, path, drafted(path))

    def _index_of(self, sequence: DraftSequence) -> SuffixIndex:
        index = self._indexes.get(sequence.sequence_id)
        if index is None:
            index = self._indexes[sequence.sequence_id] = SuffixIndex(self._max_match)
            index.num_given = len(sequence.token_ids)
        index.extend(sequence.token_ids[index.num_tokens :])
        return index

    def _continuations(
        self, index: SuffixIndex, path: list[int], drafted: Drafted
    ) -> Continuations:
        store = self._store
        suffix = index.suffix(path, max(self._max_match, LONGEST_GRAM))
        token_ids, log_probs, nats = continuations(
            index.table,
            self._learning.ngrams if self._learning else store.ngrams,
            drafted,
            suffix,
            len(path) + 1,
            self._joint_weights if len(drafted.token_ids) else store.weights,
            self._min_match,
        )
        return Continuations(token_ids.tolist(), log_probs.tolist(), nats / math.log(2.0))
