"""One sequence's draft tree. Node 0 is the anchor; every parent stands before its children.

    token_ids[0]  the last committed token, not yet in the target's KV cache
    parents[0]    -1
    depths        of the anchor 0, of a child its parent's + 1

Children of a node stand in the order in which the acceptance mode made them.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property

import numpy as np


@dataclass(frozen=True)
class DraftTree:
    """`num_nodes` drafted nodes below an anchor."""

    token_ids: np.ndarray  # int32 [num_nodes + 1]
    parents: np.ndarray  # int32 [num_nodes + 1]

    def __post_init__(self) -> None:
        if len(self.token_ids) != len(self.parents) or len(self.parents) == 0:
            raise ValueError("a tree has an anchor, and one parent per token")
        # Lists, here and below: a tree has tens of nodes, for which they beat arrays.
        first, *rest = self.parents.tolist()
        if first != -1 or any(parent < 0 for parent in rest):
            raise ValueError("the anchor, and only the anchor, has parent -1")
        if any(parent >= node for node, parent in enumerate(rest, 1)):
            raise ValueError("a parent stands before its children")

    @staticmethod
    def of_anchor(token_id: int) -> "DraftTree":
        """The tree of plain decoding: no drafted node."""
        return DraftTree(np.array([token_id], np.int32), np.array([-1], np.int32))

    @property
    def num_nodes(self) -> int:
        """Drafted nodes; the anchor is not counted."""
        return len(self.parents) - 1

    @cached_property
    def depths(self) -> np.ndarray:
        """int32 [num_nodes + 1]."""
        depths = [0]
        for parent in self.parents[1:].tolist():
            depths.append(depths[parent] + 1)
        return np.array(depths, np.int32)

    @cached_property
    def mask(self) -> np.ndarray:
        """bool [num_nodes + 1, num_nodes + 1]: the column is an ancestor of the row, or the row."""
        mask = np.eye(len(self.parents), dtype=bool)
        for node in range(1, len(mask)):
            mask[node] |= mask[self.parents[node]]
        return mask

    @cached_property
    def children(self) -> list[list[int]]:
        """Child nodes of every node, in order."""
        children: list[list[int]] = [[] for _ in self.parents]
        for node, parent in enumerate(self.parents[1:].tolist(), 1):
            children[parent].append(node)
        return children

    @cached_property
    def token_paths(self) -> list[list[int]]:
        """Tokens from below the anchor down to every node; none for the anchor."""
        paths: list[list[int]] = [[]]
        pairs = zip(self.token_ids[1:].tolist(), self.parents[1:].tolist(), strict=True)
        for token_id, parent in pairs:
            paths.append([*paths[parent], token_id])
        return paths

    def path(self, node: int) -> list[int]:
        """Drafted nodes from below the anchor down to `node`; empty for the anchor."""
        path: list[int] = []
        while node > 0:
            path.append(node)
            node = int(self.parents[node])
        return path[::-1]

    def child(self, node: int, token_id: int) -> int | None:
        """The first child of a node that carries the token."""
        children = self.children[node]
        return next((c for c in children if self.token_ids[c] == token_id), None)

    def follow(self, token_ids: Iterable[int]) -> list[int]:
        """Nodes that spell `token_ids` from below the anchor, as far as the tree goes."""
        path, node = [], 0
        for token_id in token_ids:
            child = self.child(node, token_id)
            if child is None:
                break
            path.append(child)
            node = child
        return path

    def sibling_ranks(self, nodes: Iterable[int]) -> list[int]:
        """Of drafted nodes; 0 = a first child."""
        return [self.children[self.parents[node]].index(node) for node in nodes]

    def subtree(self, nodes: np.ndarray) -> "DraftTree":
        """The tree of the anchor and `nodes` (ascending, closed under ancestors).

        Raises ValueError when a node's parent was left out.
        """
        kept = np.concatenate(([0], nodes)).astype(np.int64)
        renumbered = np.full(len(self.parents), -1, np.int32)
        renumbered[kept] = np.arange(len(kept), dtype=np.int32)
        parents = np.where(kept == 0, -1, renumbered[self.parents[kept]]).astype(np.int32)
        return DraftTree(self.token_ids[kept], parents)
