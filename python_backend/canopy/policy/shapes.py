"""The shape of a draft tree: how far a proposal grows, and which of its nodes are verified.

A node's path probability is the product of the estimated edge acceptances from the anchor to it.

    chain      breadth first, one child a node                     linear speculation
    uniform    breadth first, `max_branch` children a node         static tree
    topn       the nodes of largest path probability               EAGLE-2 (Li et al., 2024),
                                                                   OPT-Tree (Wang et al., 2024)
    threshold  topn without branches of path probability < tau

All of them stop at `node_budget` nodes, `max_depth` levels and `max_branch` children of a node.

Decoding stays lossless because a shape never reads what it must not know: where children are
drawn at random, `log_probs` holds a bound for each slot that is known before the token in it is
drawn, falling from sibling to sibling (`canopy.acceptance.slot_log_probs`). A node outranks its
descendants, so whether a slot is taken depends on nothing that is drawn in it or below it.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from canopy.config import TreeConfig
from canopy.sampling import PolicyName


@dataclass(frozen=True)
class PolicySettings:
    """A policy and its limits; the anchor is not counted in any of them."""

    name: PolicyName
    node_budget: int
    max_depth: int
    max_branch: int
    threshold: float

    @staticmethod
    def of_request(policy: PolicyName, node_budget: int, tree: TreeConfig) -> "PolicySettings":
        """A request's policy and budget under the limits of the deployment."""
        return PolicySettings(
            PolicyName(policy), int(node_budget), tree.max_depth, tree.max_branch, tree.threshold
        )

    @cached_property
    def branch(self) -> int:
        """Most children of one node under this policy."""
        return 1 if self.name is PolicyName.CHAIN else self.max_branch

    @cached_property
    def reach(self) -> int:
        """Deepest level that a node can stand on; 0 = nothing is drafted."""
        limit = 0 if self.name is PolicyName.OFF else min(self.max_depth, self.node_budget)
        return max(limit, 0)

    @cached_property
    def is_breadth_first(self) -> bool:
        return self.name in (PolicyName.CHAIN, PolicyName.UNIFORM)

    @cached_property
    def least_log_prob(self) -> float:
        """Path log-prob under which a node is dropped."""
        return math.log(self.threshold) if self.name is PolicyName.THRESHOLD else -math.inf


def rank(settings: PolicySettings, depth: int, path_log_prob: float) -> float:
    """The order in which the policy takes nodes: the smallest number first, infinity never.

    A child's rank is not below its parent's. Equal ranks go by index, parents first.
    """
    if depth > settings.reach or path_log_prob < settings.least_log_prob:
        return math.inf
    return float(depth) if settings.is_breadth_first else -path_log_prob


def widths(
    settings: PolicySettings, depth: int, path_log_probs: np.ndarray, entropies: np.ndarray
) -> np.ndarray:
    """Slots to open under each frontier node of the level at `depth`; 0 makes it a leaf.

    path_log_probs: float [n], at most 0. entropies: float [n] bits. int64 [n]. No slot that
    `select` could take is left out. Siblings share their parent's probability, so the j-th best
    has at most 1/j of it: that bounds how many can reach the threshold.
    """
    if depth >= settings.reach:
        return np.zeros(len(path_log_probs), np.int64)
    if settings.name is not PolicyName.THRESHOLD:
        return np.full(len(path_log_probs), settings.branch)
    # The margin keeps a slot that reaches the threshold but for rounding.
    room = np.exp(np.asarray(path_log_probs, np.float64)) / settings.threshold + 1e-6
    return np.minimum(room, settings.branch).astype(np.int64)


def select(
    settings: PolicySettings,
    parents: Sequence[int] | np.ndarray,
    log_probs: Sequence[float] | np.ndarray,
    entropies: Sequence[float] | np.ndarray,
) -> np.ndarray:
    """The nodes of a proposal that are verified.

    parents: int [num_nodes + 1], a parent before its children, -1 at the anchor. log_probs, at
    most 0, and entropies in bits: [num_nodes + 1]. int32 [n], ascending, closed under ancestors,
    n <= node_budget. The choice for a smaller budget is contained in that for a larger one, and a
    node that is not chosen is not chosen either once more nodes stand below the proposal's last
    level. Ties go to the lower index.
    """
    if settings.reach == 0:
        return np.zeros(0, np.int32)
    ranks = _ranks(settings, list(map(int, parents)), list(map(float, log_probs)))
    chosen = sorted(ranks, key=ranks.__getitem__)[: settings.node_budget]
    return np.array(sorted(chosen), np.int32)


def _ranks(
    settings: PolicySettings, parents: list[int], log_probs: list[float]
) -> dict[int, float]:
    """Ranks of the nodes that can be taken, in index order.

    Lists and not arrays: a tree has tens of nodes, for which this is several times as fast.
    """
    depths, paths = {0: 0}, {0: 0.0}
    num_children = [0] * len(parents)
    ranks: dict[int, float] = {}
    for node in range(1, len(parents)):
        parent = parents[node]
        if parent not in depths or num_children[parent] == settings.branch:
            continue
        depth, path = depths[parent] + 1, paths[parent] + log_probs[node]
        node_rank = rank(settings, depth, path)
        if node_rank == math.inf:
            continue
        num_children[parent] += 1
        depths[node], paths[node], ranks[node] = depth, path, node_rank
    return ranks
