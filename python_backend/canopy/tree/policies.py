"""The shape of a draft tree: how far a proposal grows, and which of its nodes are verified.

A node's path probability is the product of its edges' estimated acceptance, from the anchor on.

    chain           breadth first, one child a node                 linear speculation
    uniform         breadth first, as many children at every node   static tree
    topn            the nodes of largest path probability           EAGLE-2 (Li et al., 2024),
                                                                    OPT-Tree (Wang et al., 2024);
                    grown by levels, only the `max_branch` best of a level are expanded (EAGLE-2)
    threshold       topn without branches of path probability < tau
    entropy         threshold, and the children of a node by its entropy: one where the drafter is
                    sure, two or three where it is not, none where it does not know
    static_optimal  topn where the j-th child of any node is accepted at one measured rate; as
                    rates fall with j, the optimum of Sequoia's dynamic program (Chen et al., 2024)
    survival        threshold on calibrated acceptance, the threshold being a fixed price
    priced          survival at a price that tree_builder.goodput finds every step; here, all
                    that a price near the last one could keep

All of them stop at `node_budget` nodes, `max_depth` levels and `max_branch` children of a node.

Decoding stays lossless because a shape never reads what it must not know: where children are
drawn at random, `log_probs` holds a bound for each slot that is known before the token in it is
drawn, falling from sibling to sibling (`canopy.acceptance.slot_log_probs`). A node outranks its
descendants, so whether a slot is taken depends on nothing that is drawn in it or below it. The
entropy of a node is that of its drawn token, so it shapes the children and never the node.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from canopy.config import TreeConfig
from canopy.sampling import PolicyName
from canopy.tree.survival import SIBLING_RATES

# A node that is accepted less often than this pays at no price that a step can have.
LEAST_PRICED_SURVIVAL = 0.01

_LEAST_SURVIVAL = {
    PolicyName.THRESHOLD: lambda settings: settings.threshold,
    PolicyName.ENTROPY: lambda settings: settings.threshold,
    PolicyName.SURVIVAL: lambda settings: settings.survival_threshold,
    PolicyName.PRICED: lambda settings: settings.priced_survival,
}


@dataclass(frozen=True)
class PolicySettings:
    """A policy and its limits; the anchor is not counted in any of them."""

    name: PolicyName
    node_budget: int
    max_depth: int
    max_branch: int
    threshold: float
    entropy_bits: tuple[float, float] = (
        TreeConfig.entropy_narrow_bits,
        TreeConfig.entropy_stop_bits,
    )
    survival_threshold: float = TreeConfig.survival_threshold
    priced_survival: float = LEAST_PRICED_SURVIVAL
    sibling_rates: tuple[float, ...] = SIBLING_RATES  # acceptance of the j-th child, falling

    @staticmethod
    def of_request(
        policy: PolicyName,
        node_budget: int,
        tree: TreeConfig,
        sibling_rates: tuple[float, ...] = SIBLING_RATES,
    ) -> "PolicySettings":
        """A request's policy and budget under the limits of the deployment."""
        is_entropy = policy is PolicyName.ENTROPY
        branch = tree.uniform_branch if policy is PolicyName.UNIFORM else tree.max_branch
        return PolicySettings(
            name=policy,
            node_budget=min(node_budget, tree.entropy_max_nodes) if is_entropy else node_budget,
            max_depth=tree.max_depth,
            max_branch=min(branch, tree.max_branch),
            threshold=tree.threshold,
            entropy_bits=(tree.entropy_narrow_bits, tree.entropy_stop_bits),
            survival_threshold=tree.survival_threshold,
            sibling_rates=sibling_rates,
        )

    @cached_property
    def max_level(self) -> int:
        """Deepest level that a node can stand on; 0 = nothing is drafted."""
        limit = 0 if self.name is PolicyName.OFF else min(self.max_depth, self.node_budget)
        return max(limit, 0)

    @cached_property
    def beam(self) -> int:
        """Most nodes of one level that are expanded, where a tree grows by levels."""
        return self.max_branch if self.name is PolicyName.TOPN else self.node_budget

    @cached_property
    def is_breadth_first(self) -> bool:
        return self.name in (PolicyName.CHAIN, PolicyName.UNIFORM)

    @cached_property
    def least_survival(self) -> float:
        """Path probability under which a node is dropped."""
        read = _LEAST_SURVIVAL.get(self.name)
        return read(self) if read else 0.0

    @cached_property
    def least_score(self) -> float:
        """The same as a path score."""
        return math.log(self.least_survival) if self.least_survival else -math.inf

    @cached_property
    def _log_rates(self) -> tuple[float, ...]:
        return tuple(math.log(rate) for rate in self.sibling_rates)

    @cached_property
    def _branch(self) -> int:
        if self.name is PolicyName.STATIC_OPTIMAL:
            return min(self.max_branch, len(self.sibling_rates))
        return 1 if self.name is PolicyName.CHAIN else self.max_branch

    def branch(self, entropy: float) -> int:
        """Most children of a node whose next-token distribution has `entropy` bits."""
        if self.name is not PolicyName.ENTROPY:
            return self._branch
        narrow, stop = self.entropy_bits
        if entropy < narrow:
            return 1
        if entropy >= stop:
            return 0
        return min(2 if entropy < (narrow + stop) / 2 else 3, self.max_branch)

    def edge_score(self, sibling: int, log_prob: float) -> float:
        """What the edge into a node's `sibling`-th child adds to the path score; at most 0."""
        if self.name is PolicyName.STATIC_OPTIMAL:
            return self._log_rates[sibling]
        return log_prob


def rank(settings: PolicySettings, depth: int, path_score: float) -> float:
    """The order in which the policy takes nodes: the smallest number first, infinity never.

    path_score: sum of the edge scores down to the node, at most 0. A child's rank is not below
    its parent's. Equal ranks go by index, parents first.
    """
    if depth > settings.max_level or path_score < settings.least_score:
        return math.inf
    return float(depth) if settings.is_breadth_first else -path_score


def width(settings: PolicySettings, depth: int, path_log_prob: float, entropy: float) -> int:
    """Slots to open below a node at `depth`; 0 makes it a leaf.

    No slot that `select` could take is left out. Siblings share their parent's probability, so
    the j-th best has at most 1/j of it: that bounds how many can reach a least survival.
    """
    if depth >= settings.max_level:
        return 0
    branch = settings.branch(entropy)
    if not settings.least_survival:
        return branch
    # The margin keeps a slot that reaches the threshold but for rounding.
    return min(branch, int(math.exp(path_log_prob) / settings.least_survival + 1e-6))


def widths(
    settings: PolicySettings, depth: int, path_log_probs: np.ndarray, entropies: np.ndarray
) -> np.ndarray:
    """`width` of each frontier node of the level at `depth`; int64 [n].

    path_log_probs: float [n], at most 0. entropies: float [n] bits.
    """
    pairs = zip(path_log_probs.tolist(), entropies.tolist(), strict=True)
    return np.array([width(settings, depth, path, bits) for path, bits in pairs], np.int64)


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
    return np.array(sorted(ranked(settings, parents, log_probs, entropies)), np.int32)


def ranked(
    settings: PolicySettings,
    parents: Sequence[int] | np.ndarray,
    log_probs: Sequence[float] | np.ndarray,
    entropies: Sequence[float] | np.ndarray,
) -> dict[int, float]:
    """Node and rank of what `select` chooses, in the order in which the policy takes them."""
    if settings.max_level == 0:
        return {}
    numbers = list(map(float, log_probs)), list(map(float, entropies))
    ranks = _ranks(settings, list(map(int, parents)), *numbers)
    taken = sorted(ranks, key=ranks.__getitem__)[: settings.node_budget]
    return {node: ranks[node] for node in taken}


def _ranks(
    settings: PolicySettings, parents: list[int], log_probs: list[float], entropies: list[float]
) -> dict[int, float]:
    """Ranks of the nodes that can be taken, in index order.

    Lists and not arrays: a tree has tens of nodes, for which this is several times as fast.
    """
    depths, scores = {0: 0}, {0: 0.0}
    num_children = [0] * len(parents)
    ranks: dict[int, float] = {}
    for node in range(1, len(parents)):
        parent = parents[node]
        if parent not in depths or num_children[parent] >= settings.branch(entropies[parent]):
            continue
        edge = settings.edge_score(num_children[parent], log_probs[node])
        depth, score = depths[parent] + 1, scores[parent] + edge
        node_rank = rank(settings, depth, score)
        if node_rank == math.inf:
            continue
        num_children[parent] += 1
        depths[node], scores[node], ranks[node] = depth, score, node_rank
    return ranks
