"""One step's trees: what every sequence offers, and what of it is verified at the step's price.

A sequence under a fixed policy gets what its policy selects. Those under `priced` share one
market: all their nodes stand in one order, by survival, and the best prefix of it is verified.
Only where children are drawn, a node is held against the price of the step before.
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
    """What one sequence may have verified under its policy and its limits."""

    nodes: list[int]  # in the order in which the policy takes them
    survivals: list[float]  # of each; falling where the nodes have a price
    is_priced: bool
    is_drawn: bool  # the tokens of the nodes were drawn at random

    @property
    def is_free(self) -> bool:
        """Its nodes are weighed in this step, together with all others."""
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
    """What a step verifies, and what it taught."""

    chosen: list[np.ndarray]  # int32 nodes of each sequence, ascending
    budget: NodeBudget
    controller: BudgetController


def select_nodes(
    rankings: Sequence[NodeRanking], controller: BudgetController, load: StepLoad
) -> Selection:
    """Choose the nodes of every offer."""
    pool = _CandidatePool.of(rankings, controller.entry_price(load.num_running))
    budget, controller = controller.choose(pool.candidates, load)
    return Selection(pool.first_nodes(budget.num_nodes), budget, controller)


def select_at_prices(
    rankings: Sequence[NodeRanking], curve: CostCurve, num_running: int
) -> tuple[list[np.ndarray], NodeBudget] | None:
    """The same at prices known before: the chosen nodes, as in `Selection`, and their forest.

    None when the list has no price for so many nodes.
    """
    pool = _CandidatePool.of(rankings, curve.price)
    candidates = pool.candidates
    budget = curve.best(
        candidates.survivals, num_running + candidates.fixed_survival, candidates.num_fixed
    )
    return None if budget is None else (pool.first_nodes(budget.num_nodes), budget)


@dataclass(frozen=True)
class _CandidatePool:
    """All offers of a step, before the market opens."""

    rankings: Sequence[NodeRanking]
    num_fixed: list[int]  # nodes of each offer, its first ones, that are verified in any case
    sequence_indices: np.ndarray  # the offer behind each of the candidates' survivals
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
        """The nodes of each offer once so many candidates are bought; int32, ascending."""
        num_selected = np.bincount(
            self.sequence_indices[:num_nodes], minlength=len(self.rankings)
        ).tolist()
        return [
            np.array(sorted(ranking.nodes[: num + more]), np.int32)
            for ranking, num, more in zip(self.rankings, self.num_fixed, num_selected, strict=True)
        ]


def _num_fixed(ranking: NodeRanking, entry_price: float) -> int:
    """How many nodes of an offer, its first ones, are taken before the market opens."""
    if not ranking.is_priced:
        return len(ranking.nodes)
    return sum(survival > entry_price for survival in ranking.survivals) if ranking.is_drawn else 0


def _by_survival(rankings: Sequence[NodeRanking]) -> tuple[np.ndarray, np.ndarray]:
    """Survivals of all free nodes, falling, and the offer that each belongs to.

    An offer's own nodes keep their order, so a prefix holds the first ones of every offer.
    """
    free = [(index, ranking) for index, ranking in enumerate(rankings) if ranking.is_free]
    survivals = np.array([s for _, ranking in free for s in ranking.survivals], np.float64)
    sizes = [len(ranking.survivals) for _, ranking in free]
    sequence_indices = np.repeat(np.array([index for index, _ in free], np.int64), sizes)
    order = np.argsort(-survivals, kind="stable")
    return survivals[order], sequence_indices[order]
