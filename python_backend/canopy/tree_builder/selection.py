"""Node selection of one step: which nodes of all proposals are verified.

A sequence under a fixed policy gets the nodes that its policy selects. The nodes of all sequences
under `priced` are sorted by survival, and the prefix of largest goodput is verified. Where children
are drawn at random, a node is admitted by the price of the previous step instead, which is known
before the draw.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from canopy.sampling import PolicyName
from canopy.tree.policies import PolicySettings, ranked
from canopy.tree_builder.controller import BudgetController, CandidateNodes, StepLoad
from canopy.tree_builder.goodput import CostCurve, NodeBudget


@dataclass(frozen=True)
class NodeRanking:
    """The nodes of one sequence that may be verified under its policy and limits."""

    nodes: list[int]  # in the order in which the policy takes them
    survivals: list[float]  # of each; falling where the nodes have a price
    is_priced: bool
    is_drawn: bool  # the tokens of the nodes were drawn at random

    @property
    def is_free(self) -> bool:
        """Whether its nodes compete with those of other sequences in this step."""
        return self.is_priced and not self.is_drawn


def rank_nodes(
    settings: PolicySettings,
    is_drawn: bool,
    parents: np.ndarray,
    log_probs: np.ndarray,
    entropies: np.ndarray,
) -> NodeRanking:
    """The nodes of a proposal that the policy can take; arguments as for `select`."""
    ranks = ranked(settings, parents, log_probs, entropies)
    is_priced = settings.name is PolicyName.PRICED
    if is_priced:
        survivals = [math.exp(-rank) for rank in ranks.values()]
    else:
        survivals = _path_probs(parents.tolist(), log_probs.tolist(), list(ranks))
    return NodeRanking(list(ranks), survivals, is_priced, is_drawn)


def _path_probs(parents: list[int], log_probs: list[float], nodes: list[int]) -> list[float]:
    """Of nodes that stand behind their ancestors."""
    probs = {0: 1.0}
    for node in nodes:
        probs[node] = probs[parents[node]] * math.exp(log_probs[node])
    return [probs[node] for node in nodes]


@dataclass(frozen=True)
class Selection:
    """The nodes that a step verifies, and the controller after it."""

    chosen: list[np.ndarray]  # int32 nodes of each sequence, ascending
    budget: NodeBudget
    controller: BudgetController


def select_nodes(
    rankings: Sequence[NodeRanking], controller: BudgetController, load: StepLoad
) -> Selection:
    """Choose the nodes of every sequence."""
    pool = _CandidatePool.of(rankings, controller.entry_price(load.num_running))
    budget, controller = controller.choose(pool.candidates, load)
    return Selection(pool.first_nodes(budget.num_nodes), budget, controller)


def select_at_prices(
    rankings: Sequence[NodeRanking], curve: CostCurve, num_running: int
) -> tuple[list[np.ndarray], NodeBudget] | None:
    """The same at a known cost curve: the chosen nodes, as in `Selection`, and their budget.

    None when the curve is too short for so many nodes.
    """
    pool = _CandidatePool.of(rankings, curve.price)
    candidates = pool.candidates
    budget = curve.best(
        candidates.survivals, num_running + candidates.fixed_survival, candidates.num_fixed
    )
    return None if budget is None else (pool.first_nodes(budget.num_nodes), budget)


@dataclass(frozen=True)
class _CandidatePool:
    """All rankings of a step, and how many nodes of each are fixed before selection."""

    rankings: Sequence[NodeRanking]
    num_fixed: list[int]  # nodes of each ranking, its first ones, that are verified in any case
    sequence_indices: np.ndarray  # the ranking of each candidate
    candidates: CandidateNodes

    @staticmethod
    def of(rankings: Sequence[NodeRanking], entry_price: float) -> "_CandidatePool":
        num_fixed = [_num_fixed(ranking, entry_price) for ranking in rankings]
        survivals, sequence_indices = _by_survival(rankings)
        fixed = list(zip(rankings, num_fixed, strict=True))
        candidates = CandidateNodes(
            survivals=survivals,
            num_admitted=sum(num for ranking, num in fixed if ranking.is_priced),
            num_unpriced=sum(num for ranking, num in fixed if not ranking.is_priced),
            fixed_survival=math.fsum(s for ranking, num in fixed for s in ranking.survivals[:num]),
            is_priced=any(ranking.is_priced for ranking in rankings),
        )
        return _CandidatePool(rankings, num_fixed, sequence_indices, candidates)

    def first_nodes(self, num_nodes: int) -> list[np.ndarray]:
        """The nodes of each ranking once so many candidates are selected; int32, ascending."""
        num_selected = np.bincount(
            self.sequence_indices[:num_nodes], minlength=len(self.rankings)
        ).tolist()
        return [
            np.array(sorted(ranking.nodes[: num + more]), np.int32)
            for ranking, num, more in zip(self.rankings, self.num_fixed, num_selected, strict=True)
        ]


def _num_fixed(ranking: NodeRanking, entry_price: float) -> int:
    """How many nodes of a ranking, its first ones, are verified in any case."""
    if not ranking.is_priced:
        return len(ranking.nodes)
    return sum(survival > entry_price for survival in ranking.survivals) if ranking.is_drawn else 0


def _by_survival(rankings: Sequence[NodeRanking]) -> tuple[np.ndarray, np.ndarray]:
    """Survivals of all competing nodes, falling, and the ranking that each belongs to.

    A ranking's own nodes keep their order, so a prefix holds the first ones of every ranking.
    """
    free = [(index, ranking) for index, ranking in enumerate(rankings) if ranking.is_free]
    survivals = np.array([s for _, ranking in free for s in ranking.survivals], np.float64)
    sizes = [len(ranking.survivals) for _, ranking in free]
    sequence_indices = np.repeat(np.array([index for index, _ in free], np.int64), sizes)
    order = np.argsort(-survivals, kind="stable")
    return survivals[order], sequence_indices[order]
