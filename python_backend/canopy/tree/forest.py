"""Ragged arrays: the trees of all running sequences, one after the other.

`num_nodes[s]` counts drafted nodes, so sequence s owns `num_nodes[s] + 1` entries of every
per-node array (the anchor is entry 0), and node numbers are local to the sequence.
"""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from canopy.tree.draft_tree import DraftTree


def offsets_of(lengths: np.ndarray | Sequence[int]) -> np.ndarray:
    """int64 [n + 1] starts of ragged rows: `values[offsets[i]:offsets[i + 1]]` is row i."""
    offsets = np.zeros(len(lengths) + 1, np.int64)
    np.cumsum(lengths, out=offsets[1:])
    return offsets


def split_ragged(values: np.ndarray, lengths: np.ndarray) -> list[np.ndarray]:
    """Views of the rows. Raises ValueError when the lengths do not add up."""
    ends = list(itertools.accumulate(lengths.tolist(), initial=0))  # a short list beats an array
    if ends[-1] != len(values):
        raise ValueError(f"ragged lengths add up to {ends[-1]}, there are {len(values)} values")
    return [values[a:b] for a, b in itertools.pairwise(ends)]


@dataclass(frozen=True)
class Forest:
    """Trees packed for a message."""

    num_nodes: np.ndarray  # int32 [S]
    token_ids: np.ndarray  # int32 [sum(num_nodes + 1)]
    parents: np.ndarray  # int32 [sum(num_nodes + 1)]

    @staticmethod
    def pack(trees: Sequence[DraftTree]) -> "Forest":
        """Concatenate trees, in order."""
        empty = np.zeros(0, np.int32)
        return Forest(
            np.array([tree.num_nodes for tree in trees], np.int32),
            np.concatenate([empty, *(tree.token_ids for tree in trees)]).astype(np.int32),
            np.concatenate([empty, *(tree.parents for tree in trees)]).astype(np.int32),
        )

    def unpack(self) -> list[DraftTree]:
        """The trees again. Raises ValueError for anything that is not a forest."""
        lengths = self.num_nodes + 1
        pairs = zip(
            split_ragged(self.token_ids, lengths), split_ragged(self.parents, lengths), strict=True
        )
        return [DraftTree(token_ids, parents) for token_ids, parents in pairs]
