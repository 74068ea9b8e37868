"""A proposal: the superset tree that one drafter pass offers for one sequence."""

from dataclasses import dataclass

import numpy as np

from canopy.tree.draft_tree import DraftTree


@dataclass(frozen=True)
class ProposalRow:
    """A sparse next-token distribution of the drafter, truncated and renormalized.

    Empty = no distribution: the children of the node are deterministic (point masses).
    """

    token_ids: np.ndarray  # int32 [K], distinct
    log_probs: np.ndarray  # float32 [K], probabilities sum to 1

    @staticmethod
    def empty() -> "ProposalRow":
        """The row of a node whose children, if any, are deterministic."""
        return ProposalRow(np.zeros(0, np.int32), np.zeros(0, np.float32))

    @property
    def is_empty(self) -> bool:
        return len(self.token_ids) == 0


@dataclass(frozen=True)
class Proposal:
    """A tree with what a policy may read about each node.

    `log_probs[i]` estimates the log of the acceptance of the edge into node i (0 at the anchor).
    Where children are drawn it is a bound known before the draw.
    """

    tree: DraftTree
    log_probs: np.ndarray  # float32 [num_nodes + 1], at most 0
    entropies: np.ndarray  # float32 [num_nodes + 1], bits
    rows: list[ProposalRow]  # one per node, the anchor included

    @staticmethod
    def of_anchor(token_id: int) -> "Proposal":
        """The proposal that offers nothing."""
        zero = np.zeros(1, np.float32)
        return Proposal(DraftTree.of_anchor(token_id), zero, zero, [ProposalRow.empty()])
