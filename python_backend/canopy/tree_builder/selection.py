"""One turn's trees: what every sequence offers, and what of it is verified at the turn's price.

A sequence under a fixed policy gets what its policy selects. Those under `priced` share one
market: all their nodes stand in one order, by survival, and the best prefix of it is verified.
Only where children are drawn, a node is held against the price of the turn before.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from canopy.sampling import PolicyName
from canopy.tree.policies import PolicySettings, ranked
from canopy.tree_builder.controller import Candidates, Economy, TurnLoad
from canopy.tree_builder.goodput import Forest, PriceList


@dataclass(frozen=True)
class Offer:
    """What one sequence may have verified under its policy and its limits."""

    nodes: list[int]  # in the order in which the policy takes them
    survivals: list[float]  # of each; falling where the nodes have a price
    is_priced: bool
    is_drawn: bool  # the tokens of the nodes were drawn at random

    @property
    def is_free(self) -> bool:
        """Its nodes are weighed in this turn, together with all others."""
        return self.is_priced and not self.is_drawn


def offer_of(
    settings: PolicySettings,
    is_drawn: bool,
    parents: np.ndarray,
    log_probs: np.ndarray,
    entropies: np.ndarray,
) -> Offer:
    """The nodes of a proposal that the policy can take; arguments as for `select`."""
    ranks = ranked(settings, parents, log_probs, entropies)
    is_priced = settings.name is PolicyName.PRICED
    if is_priced:
        survivals = [math.exp(-rank) for rank in ranks.values()]
    else:
        survivals = _path_probs(parents.tolist(), log_probs.tolist(), list(ranks))
    return Offer(list(ranks), survivals, is_priced, is_drawn)


def _path_probs(parents: list[int], log_probs: list[float], nodes: list[int]) -> list[float]:
    """Of nodes that stand behind their ancestors."""
    probs = {0: 1.0}
    for node in nodes:
        probs[node] = probs[parents[node]] * math.exp(log_probs[node])
    return [probs[node] for node in nodes]


@dataclass(frozen=True)
class Cleared:
    """What a turn verifies, and what it taught."""

    chosen: list[np.ndarray]  # int32 nodes of each sequence, ascending
    forest: Forest
    economy: Economy


def clear(offers: Sequence[Offer], economy: Economy, load: TurnLoad) -> Cleared:
    """Choose the nodes of every offer."""
    stall = _Stall.of(offers, economy.entry_price(load.num_running))
    forest, economy = economy.settled(stall.candidates, load)
    return Cleared(stall.sold(forest.num_nodes), forest, economy)


def clear_at(
    offers: Sequence[Offer], prices: PriceList, num_running: int
) -> tuple[list[np.ndarray], Forest] | None:
    """The same at prices known before: the chosen nodes, as in `Cleared`, and their forest.

    None when the list has no price for so many nodes.
    """
    stall = _Stall.of(offers, prices.theta)
    candidates = stall.candidates
    forest = prices.best(
        candidates.survivals, num_running + candidates.fixed_survival, candidates.num_fixed
    )
    return None if forest is None else (stall.sold(forest.num_nodes), forest)


@dataclass(frozen=True)
class _Stall:
    """All offers of a turn, before the market opens."""

    offers: Sequence[Offer]
    taken: list[int]  # nodes of each offer, its first ones, that are verified in any case
    owners: np.ndarray  # the offer behind each of the candidates' survivals
    candidates: Candidates

    @staticmethod
    def of(offers: Sequence[Offer], entry_price: float) -> "_Stall":
        taken = [_taken_at_once(offer, entry_price) for offer in offers]
        survivals, owners = _in_one_order(offers)
        fixed = list(zip(offers, taken, strict=True))
        candidates = Candidates(
            survivals=survivals,
            num_admitted=sum(num for offer, num in fixed if offer.is_priced),
            num_unpriced=sum(num for offer, num in fixed if not offer.is_priced),
            fixed_survival=math.fsum(s for offer, num in fixed for s in offer.survivals[:num]),
            is_priced=any(offer.is_priced for offer in offers),
        )
        return _Stall(offers, taken, owners, candidates)

    def sold(self, num_nodes: int) -> list[np.ndarray]:
        """The nodes of each offer once so many candidates are bought; int32, ascending."""
        bought = np.bincount(self.owners[:num_nodes], minlength=len(self.offers)).tolist()
        return [
            np.array(sorted(offer.nodes[: num + more]), np.int32)
            for offer, num, more in zip(self.offers, self.taken, bought, strict=True)
        ]


def _taken_at_once(offer: Offer, entry_price: float) -> int:
    """How many nodes of an offer, its first ones, are taken before the market opens."""
    if not offer.is_priced:
        return len(offer.nodes)
    return sum(survival > entry_price for survival in offer.survivals) if offer.is_drawn else 0


def _in_one_order(offers: Sequence[Offer]) -> tuple[np.ndarray, np.ndarray]:
    """Survivals of all free nodes, falling, and the offer that each belongs to.

    An offer's own nodes keep their order, so a prefix holds the first ones of every offer.
    """
    free = [(index, offer) for index, offer in enumerate(offers) if offer.is_free]
    survivals = np.array([s for _, offer in free for s in offer.survivals], np.float64)
    sizes = [len(offer.survivals) for _, offer in free]
    owners = np.repeat(np.array([index for index, _ in free], np.int64), sizes)
    order = np.argsort(-survivals, kind="stable")
    return survivals[order], owners[order]
