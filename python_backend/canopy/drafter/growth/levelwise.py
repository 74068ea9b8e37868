"""One proposal as it grows from the anchor, a level at a time.

Below every frontier node a source offers slots: an estimate of each edge's acceptance, falling
from sibling to sibling, with the tokens still closed. The policy admits slots by the estimates
alone, and only then are their tokens asked for. What the policy would not select now it never
will, so nothing is lost by dropping it at once.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from canopy.drafter.source import DraftTask
from canopy.tree import DraftTree, Proposal, ProposalRow
from canopy.tree.policies import select, widths

_NO_ROW = ProposalRow.empty()


@dataclass(frozen=True)
class ChildSlots:
    """The slots that a source can open below one node."""

    log_probs: Sequence[float]  # at most 0, falling; known before any token is drawn
    token_ids: Callable[[int], Sequence[int]]  # tokens of the first `num` slots, fewer if none left
    entropy: float  # bits
    row: ProposalRow = _NO_ROW


class LevelwiseProposal:
    """Grows one proposal; nodes are numbered in the order in which they were opened."""

    def __init__(self, task: DraftTask) -> None:
        self.task = task
        self.token_ids = [task.sequence.token_ids[-1]]
        self.parents = [-1]
        self.depth = 0  # of the deepest level
        self._log_probs = [0.0]
        self._path_log_probs = [0.0]
        self._entropies = [0.0]
        self._rows = [_NO_ROW]
        self._level = [0]
        self._stops = frozenset(task.sequence.params.stop_token_ids)

    def frontier(self) -> list[int]:
        """Nodes of the deepest level to expand next; empty when the proposal is complete."""
        # The anchor may be a stop token of the prompt. Below any other the sequence has ended.
        nodes = [n for n in self._level if n == 0 or self.token_ids[n] not in self._stops]
        # The entropy of a node's conditional is known once it was expanded; none stops at 0 bits.
        slots = self._widths(nodes, [0.0] * len(nodes))
        nodes = [node for node, width in zip(nodes, slots, strict=True) if width > 0]
        best = sorted(nodes, key=lambda node: -self._path_log_probs[node])
        return sorted(best[: self.task.settings.beam])

    def token_path(self, node: int) -> list[int]:
        """Tokens from below the anchor down to a node."""
        path: list[int] = []
        while node > 0:
            path.append(self.token_ids[node])
            node = self.parents[node]
        return path[::-1]

    def expand(self, nodes: Sequence[int], offers: Sequence[ChildSlots]) -> None:
        """Open the next level below `nodes`, the whole frontier in its order."""
        for node, offer in zip(nodes, offers, strict=True):
            self._entropies[node], self._rows[node] = offer.entropy, offer.row
        slots = self._widths(nodes, [offer.entropy for offer in offers])
        edges = [
            self.task.calibration.siblings(offer.log_probs[:width])
            for offer, width in zip(offers, slots, strict=True)
        ]
        admitted = self._admit(
            [(node, edge) for node, own in zip(nodes, edges, strict=True) for edge in own]
        )
        self._level = []
        self.depth += 1
        for node, offer, log_probs in zip(nodes, offers, edges, strict=True):
            tokens = offer.token_ids(admitted[node]) if node in admitted else ()
            for token, log_prob in zip(tokens, log_probs, strict=False):
                self._append(node, int(token), log_prob)

    def proposal(self) -> Proposal:
        """What the policy selects of all that grew."""
        nodes = self._select(self.parents, self._log_probs)
        kept = [0, *nodes.tolist()]
        tree = DraftTree(np.array(self.token_ids, np.int32), np.array(self.parents, np.int32))
        return Proposal(
            tree.subtree(nodes),
            np.array(self._log_probs, np.float32)[kept],
            np.array(self._entropies, np.float32)[kept],
            [self._rows[node] for node in kept],
        )

    def _widths(self, nodes: Sequence[int], entropies: list[float]) -> list[int]:
        paths = np.array([self._path_log_probs[node] for node in nodes])
        return widths(self.task.settings, self.depth, paths, np.array(entropies)).tolist()

    def _admit(self, slots: list[tuple[int, float]]) -> dict[int, int]:
        """How many slots of each node the policy takes; always its first ones."""
        chosen = self._select(
            [*self.parents, *(node for node, _ in slots)],
            [*self._log_probs, *(log_prob for _, log_prob in slots)],
        )
        admitted: dict[int, int] = {}
        for index in chosen[np.searchsorted(chosen, len(self.parents)) :] - len(self.parents):
            node = slots[index][0]
            admitted[node] = admitted.get(node, 0) + 1
        return admitted

    def _select(self, parents: list[int], log_probs: list[float]) -> np.ndarray:
        unknown = len(parents) - len(self._entropies)
        return select(self.task.settings, parents, log_probs, [*self._entropies, *[0.0] * unknown])

    def _append(self, parent: int, token: int, log_prob: float) -> None:
        self._level.append(len(self.parents))
        self.token_ids.append(token)
        self.parents.append(parent)
        self._log_probs.append(log_prob)
        self._path_log_probs.append(self._path_log_probs[parent] + log_prob)
        self._entropies.append(0.0)
        self._rows.append(_NO_ROW)
