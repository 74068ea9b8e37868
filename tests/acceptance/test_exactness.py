"""Every policy in every mode keeps the target's distribution; a policy that peeks does not."""

from dataclasses import dataclass, replace

import numpy as np
import pytest
from enumeration import enumerate_outcomes
from exactness_check import Round, toy_conditional

from canopy.acceptance.rejection import row_probs
from canopy.costs.cost_model import CostModel
from canopy.costs.profile import Profile
from canopy.sampling import Acceptance, PolicyName
from canopy.tree.policies import PolicySettings, select, widths
from canopy.tree_builder.controller import BudgetController, StepLoad
from canopy.tree_builder.selection import rank_nodes, select_nodes

TOLERANCE = 1e-12
SEEDS = range(3)
DRAWING = [mode for mode in Acceptance if mode.draws_children]


@dataclass(frozen=True)
class TwoSlots:
    """Drafts two slots a node; which of them are verified is up to the subclass."""

    def widths(self, depth, path_log_probs, entropies):
        return np.full(len(path_log_probs), 2)


class SkipsASibling(TwoSlots):
    """Drops the first child of the anchor, whatever it is, and keeps the second."""

    def select(self, parents, log_probs, entropies):
        return np.flatnonzero(parents == 0)[1:]


class DropsUncertain(TwoSlots):
    """Drops a drafted node because of its own next-token entropy, which its token decides."""

    def select(self, parents, log_probs, entropies):
        return np.flatnonzero((parents == 0) & (entropies < 0.9))


def lint(shape, acceptance, seed, max_depth=2, vocab_size=3):
    target, draft = toy_conditional(seed, vocab_size), toy_conditional(seed + 100, vocab_size)
    return Round(target, draft, shape, acceptance, max_depth)


def drawn_tokens_own(row, children):
    places = [row.token_ids.tolist().index(token) for token in children]
    return row.log_probs[places]


def test_the_enumeration_covers_all_outcomes_once():
    def two_dice(random_source):
        first = random_source.sample(np.array([1.0, 0.0, 3.0]), 0)
        return first, random_source.bernoulli(0.25, 1) if first else None

    distribution = dict(enumerate_outcomes(two_dice))
    assert distribution == {(0, None): 0.25, (2, False): 0.5625, (2, True): 0.1875}


@dataclass(frozen=True)
class Policy:
    """A policy of canopy.costs with its settings."""

    settings: PolicySettings

    def widths(self, depth, path_log_probs, entropies):
        return widths(self.settings, depth, path_log_probs, entropies)

    def select(self, parents, log_probs, entropies):
        return select(self.settings, parents, log_probs, entropies)


def settings(name, node_budget, max_depth, max_branch=2, threshold=0.2, **own):
    return PolicySettings(name, node_budget, max_depth, max_branch, threshold, **own)


POLICIES = {
    "off": settings(PolicyName.OFF, 4, 2),
    "chain": settings(PolicyName.CHAIN, 3, 3),
    "uniform": settings(PolicyName.UNIFORM, 6, 2),
    "uniform cut by the budget": settings(PolicyName.UNIFORM, 3, 2),
    "uniform, every token": settings(PolicyName.UNIFORM, 3, 1, max_branch=3),
    "threshold": settings(PolicyName.THRESHOLD, 6, 2),
    "deep threshold": settings(PolicyName.THRESHOLD, 8, 3, threshold=0.3),
    "topn": settings(PolicyName.TOPN, 3, 2),
    "topn of 2": settings(PolicyName.TOPN, 2, 2),
    "entropy": settings(PolicyName.ENTROPY, 6, 2, threshold=0.05, entropy_bits=(0.7, 1.4)),
    "deep entropy": settings(PolicyName.ENTROPY, 4, 3, threshold=0.3, entropy_bits=(0.8, 1.4)),
    "static_optimal": settings(PolicyName.STATIC_OPTIMAL, 4, 2, sibling_rates=(0.6, 0.5, 0.1)),
    "survival": settings(PolicyName.SURVIVAL, 6, 2, survival_threshold=0.25),
    "priced": settings(PolicyName.PRICED, 4, 2),
}


@dataclass(frozen=True)
class PricedSelection(Policy):
    """What the tree builder makes of a priced proposal, where the cost of a node is a stair."""

    is_drawn: bool = True
    padded = CostModel((1,), (1, 5, 6), ((1.0, 2.4, 2.4),), is_step_function=True)

    def select(self, parents, log_probs, entropies):
        controller = BudgetController.of_profile(Profile(cost_model=self.padded, overhead_ms=0.0))
        ranking = rank_nodes(self.settings, self.is_drawn, parents, log_probs, entropies)
        return select_nodes([ranking], replace(controller, price=0.35), StepLoad(1, 0, 99)).chosen[
            0
        ]


@pytest.mark.parametrize("acceptance", Acceptance)
def test_priced_selection_keeps_the_distribution_in_every_mode(acceptance):
    selection = PricedSelection(POLICIES["priced"], is_drawn=acceptance.draws_children)
    assert worst(selection, acceptance) <= TOLERANCE


def test_a_price_that_is_found_after_the_draw_is_caught():
    assert worst(PricedSelection(POLICIES["priced"], is_drawn=False), Acceptance.REJECTION) > 0.01


@pytest.mark.parametrize("acceptance", Acceptance)
@pytest.mark.parametrize("policy", POLICIES)
def test_every_policy_keeps_the_law_in_every_mode(policy, acceptance):
    for seed in SEEDS:
        shape = Policy(POLICIES[policy])
        assert lint(shape, acceptance, seed, shape.settings.max_depth).error() <= TOLERANCE


@pytest.mark.parametrize("acceptance", DRAWING)
@pytest.mark.parametrize("policy", POLICIES)
def test_deterministic_children_keep_the_law_too(policy, acceptance):
    shape = Policy(POLICIES[policy])
    for deterministic in (
        lambda prefix: True,
        lambda prefix: sum(prefix) % 2 == 0,
        lambda prefix: sum(prefix) % 2 == 1,
    ):
        linted = lint(shape, acceptance, 1, shape.settings.max_depth)
        assert replace(linted, deterministic=deterministic).error() <= TOLERANCE


def test_every_policy_of_the_service_is_linted():
    assert {policy.name for policy in POLICIES.values()} == set(PolicyName)


def worst(shape, acceptance, **parts):
    return max(replace(lint(shape, acceptance, seed), **parts).error() for seed in SEEDS)


@pytest.mark.parametrize("acceptance", DRAWING)
@pytest.mark.parametrize("policy", ["threshold", "topn"])
def test_a_policy_that_reads_the_drawn_token_is_caught(policy, acceptance):
    assert worst(Policy(POLICIES[policy]), acceptance, report=drawn_tokens_own) > 0.01


@pytest.mark.parametrize("acceptance", DRAWING)
def test_dropping_a_drawn_node_for_its_own_entropy_is_caught(acceptance):
    assert worst(DropsUncertain(), acceptance) > 0.01


@pytest.mark.parametrize("acceptance", DRAWING)
def test_skipping_an_earlier_sibling_is_caught(acceptance):
    assert worst(SkipsASibling(), acceptance) > 0.01


@pytest.mark.parametrize("shape", [SkipsASibling(), DropsUncertain()])
@pytest.mark.parametrize("acceptance", [mode for mode in Acceptance if not mode.draws_children])
def test_the_other_modes_allow_any_shape(shape, acceptance):
    assert worst(shape, acceptance) <= TOLERANCE


def test_a_residual_that_keeps_the_rejected_mass_is_caught():
    def decide_by_wrong_residual(target_weights, children, row, random_source):
        draft = dict(zip(row.token_ids.tolist(), row_probs(row), strict=True))
        for index, token in enumerate(children):
            if random_source.bernoulli(min(1.0, target_weights[token] / draft[token]), index):
                return token
        return random_source.sample(target_weights, len(children))

    linted = Policy(POLICIES["chain"]), Acceptance.REJECTION
    assert worst(*linted, decide=decide_by_wrong_residual) > 0.01
