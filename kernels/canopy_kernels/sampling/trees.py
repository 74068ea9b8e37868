"""Ragged trees and verdicts on the device, and the step from a node to its next child.

Nodes of sequence s are `node_starts[s] .. node_starts[s + 1]`, its anchor first and every parent
before its children; parents and paths are node numbers local to the sequence.
"""

from dataclasses import dataclass

import torch
import triton
import triton.language as tl

# What a program holds of a tree and of a proposal row: few sizes, so that few variants of a kernel
# have to be compiled.
NODE_SIZES = (16, 128, 512)
ROW_SIZES = (8, 32, 128, 512)


def padded_size(size: int, sizes: tuple[int, ...]) -> int:
    """The least of `sizes` that holds `size`, or beyond them a power of two."""
    return next((s for s in sizes if s >= size), triton.next_power_of_2(size))


@dataclass(frozen=True)
class Trees:
    """N nodes of S sequences, the anchors included."""

    node_starts: torch.Tensor  # int32 [S + 1]
    token_ids: torch.Tensor  # int32 [N]
    parents: torch.Tensor  # int32 [N], -1 at anchors; siblings carry different tokens
    max_nodes: int  # most nodes of one sequence, or more; known without asking the device
    max_depth: int  # deepest node, or more

    @property
    def num_sequences(self) -> int:
        return len(self.node_starts) - 1

    @property
    def padded_nodes(self) -> int:
        """NODES of the kernels."""
        return padded_size(self.max_nodes, NODE_SIZES)


@dataclass(frozen=True)
class ProposalRows:
    """The sparse row that the children of each node were drawn from; empty = deterministic."""

    starts: torch.Tensor  # int32 [N + 1]
    token_ids: torch.Tensor  # int32 [E], distinct within a row
    log_probs: torch.Tensor  # float32 [E]
    max_length: int  # longest row, or more; at least the number of children of any node

    @property
    def padded_length(self) -> int:
        """ROW of the kernels."""
        return padded_size(self.max_length, ROW_SIZES)


@dataclass(frozen=True)
class VerificationResults:
    """What a round adds to each sequence: int32 [S, 2 + max_depth].

    Columns: number of accepted nodes, bonus token, accepted path padded with -1.
    """

    table: torch.Tensor

    @staticmethod
    def empty(trees: Trees) -> "VerificationResults":
        """Room for the verdicts of some trees; the paths are padding."""
        shape = (trees.num_sequences, 2 + trees.max_depth)
        return VerificationResults(trees.parents.new_full(shape, -1))


@triton.jit
def next_child(parents, node, after):
    """The first child of `node` behind node `after`, or a number past the last node.

    parents: int32 [NODES], padded with a number that is no node.
    """
    nodes = tl.arange(0, parents.shape[0])
    return tl.min(tl.where((parents == node) & (nodes > after), nodes, parents.shape[0]), 0)
