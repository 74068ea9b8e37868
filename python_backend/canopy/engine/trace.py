"""What a client is told about every round of its sequence: the tree, and what became of it.

A round is a JSON object. Node 0 is the anchor; the other numbers count drafted nodes from 1.

    round          1, 2, ... of this sequence
    token_ids      [num_nodes + 1]
    texts          [num_nodes + 1] of the tokens, as they read after their parents
    parents        [num_nodes + 1], -1 at the anchor
    survival       [num_nodes + 1] chance that the path to the node is accepted, as it was foreseen
    accepted       nodes of the accepted path, from the anchor's child down
    bonus          {"token_id", "text"} of the token that the target added; null where a stop cut it
    node_budget    most nodes that this request allows
    theta          the survival that a node had to have; null where the policy asks no price
    verify_ms      the target's forward and acceptance, for all sequences of the step
    predicted_ms   what the tree builder foresaw for it; null in a round without drafting
    num_running    sequences in the step
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from canopy.tree import DraftTree


@dataclass(frozen=True)
class TracedTree:
    """A sequence's tree of one step with what the trace says about its nodes."""

    tree: DraftTree
    survival: np.ndarray  # float [num_nodes + 1], at most 1
    price: float | None
    predicted_ms: float | None

    @staticmethod
    def of_anchor(token_id: int) -> "TracedTree":
        """The tree of a round without drafting."""
        return TracedTree(DraftTree.of_anchor(token_id), np.ones(1), None, None)


def path_survival(log_probs: np.ndarray, parents: np.ndarray) -> np.ndarray:
    """Product of the edge acceptances from the anchor to each node; float64 [num_nodes + 1]."""
    logs = np.asarray(log_probs, np.float64).copy()
    for node in range(1, len(logs)):
        logs[node] += logs[parents[node]]
    return np.exp(logs)


@dataclass(frozen=True)
class TracedStep:
    """What all sequences of a step share."""

    verify_ms: float
    num_running: int


class RoundTrace:
    """The rounds of one sequence since its last response."""

    def __init__(self, decode: Callable[[list[int]], str], node_budget: int) -> None:
        self._decode = decode
        self._node_budget = node_budget
        self._num_rounds = 0
        self._pending: list[dict[str, Any]] = []

    def add(
        self, traced: TracedTree, emitted: Sequence[int], num_accepted: int, step: TracedStep
    ) -> None:
        """Note a round. emitted: its tokens that the sequence kept, accepted path first."""
        tree = traced.tree
        accepted = tree.follow(emitted[:num_accepted])
        self._num_rounds += 1
        self._pending.append(
            {
                "round": self._num_rounds,
                "token_ids": tree.token_ids.tolist(),
                "texts": self._texts(tree),
                "parents": tree.parents.tolist(),
                "survival": [round(float(s), 5) for s in traced.survival],
                "accepted": accepted,
                "bonus": self._bonus(tree, accepted, emitted[num_accepted:]),
                "node_budget": self._node_budget,
                "price": traced.price,
                "verify_ms": round(step.verify_ms, 3),
                "predicted_ms": traced.predicted_ms,
                "num_running": step.num_running,
            }
        )

    def take(self) -> list[dict[str, Any]]:
        """The rounds noted since the last call."""
        taken, self._pending = self._pending, []
        return taken

    def _texts(self, tree: DraftTree) -> list[str]:
        tokens = tree.token_ids.tolist()
        drafted = zip(tokens[1:], tree.parents[1:].tolist(), strict=True)
        return [self._decode(tokens[:1]), *(self._text(t, tokens[p]) for t, p in drafted)]

    def _text(self, token_id: int, parent_id: int) -> str:
        """Decoded behind its parent: some tokenizers drop the space before the first word."""
        before, both = self._decode([parent_id]), self._decode([parent_id, token_id])
        return both[len(before) :] if both.startswith(before) else self._decode([token_id])

    def _bonus(
        self, tree: DraftTree, accepted: Sequence[int], rest: Sequence[int]
    ) -> dict[str, Any] | None:
        if not rest:
            return None
        last = int(tree.token_ids[accepted[-1] if accepted else 0])
        return {"token_id": rest[0], "text": self._text(rest[0], last)}
