"""LevelwiseProposal one node at a time, the policy's next choice first.

Where a node costs little to expand and nothing is gained by expanding many together, this drafts
no node in vain: the tree is what the policy would select of everything that could be drafted.
"""

import heapq
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from canopy.drafter.source import DraftTask
from canopy.tree import DraftTree, Proposal, ProposalRow
from canopy.tree.policies import rank, width


class Continuations(NamedTuple):
    """Known next tokens after a path, the likeliest first."""

    token_ids: Sequence[int]
    log_probs: Sequence[float]  # at most 0, falling
    entropy: float  # bits


class _Slot(NamedTuple):
    """A node that may be taken; the smallest tuple is next."""

    rank: float
    order: int
    parent: int
    token_id: int
    log_prob: float
    path_score: float


_NO_ROW = ProposalRow.empty()


class BestFirst:
    """One proposal with deterministic children, as it grows."""

    def __init__(
        self, task: DraftTask, continuations_of: Callable[[list[int]], Continuations]
    ) -> None:
        """continuations_of: from the tokens below the anchor, down to a node."""
        self._settings = task.settings
        self._calibration = task.calibration
        self._stops = frozenset(task.sequence.params.stop_token_ids)
        self._continuations_of = continuations_of
        self._token_ids = [task.sequence.token_ids[-1]]
        self._parents = [-1]
        self._paths: list[list[int]] = [[]]
        self._log_probs = [0.0]
        self._path_log_probs = [0.0]
        self._path_scores = [0.0]
        self._entropies = [0.0]
        self._slots: list[_Slot] = []
        self._num_opened = 0

    def grow(self) -> Proposal:
        """Take nodes until the budget is spent or nothing more is known."""
        budget = self._settings.node_budget if self._settings.max_level > 0 else 0
        while len(self._parents) <= budget:
            newest = len(self._parents) - 1
            if newest == 0 or self._token_ids[newest] not in self._stops:
                self._open_slots(newest)
            if not self._slots:
                break
            self._take(heapq.heappop(self._slots))
        return Proposal(
            DraftTree(np.array(self._token_ids, np.int32), np.array(self._parents, np.int32)),
            np.array(self._log_probs, np.float32),
            np.array(self._entropies, np.float32),
            [_NO_ROW] * len(self._parents),
        )

    def _open_slots(self, node: int) -> None:
        path, path_log_prob = self._paths[node], self._path_log_probs[node]
        depth = len(path) + 1
        if depth > self._settings.max_level:
            return
        token_ids, log_probs, self._entropies[node] = self._continuations_of(path)
        num = width(self._settings, depth - 1, path_log_prob, self._entropies[node])
        edges = zip(token_ids[:num], self._calibration.siblings(log_probs[:num]), strict=True)
        for sibling, (token_id, log_prob) in enumerate(edges):
            score = self._path_scores[node] + self._settings.edge_score(sibling, log_prob)
            slot_rank = rank(self._settings, depth, score)
            if slot_rank < np.inf:
                slot = _Slot(slot_rank, self._num_opened, node, token_id, log_prob, score)
                heapq.heappush(self._slots, slot)
                self._num_opened += 1

    def _take(self, slot: _Slot) -> None:
        parent = slot.parent
        self._token_ids.append(slot.token_id)
        self._parents.append(parent)
        self._paths.append([*self._paths[parent], slot.token_id])
        self._log_probs.append(slot.log_prob)
        self._path_log_probs.append(self._path_log_probs[parent] + slot.log_prob)
        self._path_scores.append(slot.path_score)
        self._entropies.append(0.0)
