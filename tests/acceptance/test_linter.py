"""Every policy in every mode keeps the target's law exactly; a policy that peeks does not."""

from dataclasses import dataclass, replace

import numpy as np
import pytest

from canopy.acceptance.branching import outcomes
from canopy.acceptance.linter import Round, toy_conditional
from canopy.acceptance.rejection import row_probs
from canopy.sampling import Acceptance

TOLERANCE = 1e-12
SEEDS = range(3)


@dataclass(frozen=True)
class Threshold:
    """Keep the branches whose joint probability reaches a threshold."""

    width: int
    threshold: float

    def widths(self, depth, path_log_probs, entropies):
        return np.where(path_log_probs >= np.log(self.threshold), self.width, 0)

    def select(self, parents, log_probs, entropies):
        kept = [0]
        paths = np.zeros(len(parents))
        for node in range(1, len(parents)):
            paths[node] = paths[parents[node]] + log_probs[node]
            if parents[node] in kept and paths[node] >= np.log(self.threshold):
                kept.append(node)
        return np.array(kept[1:], np.int64)


@dataclass(frozen=True)
class SkipsASibling(Threshold):
    """Drops the first child of the anchor, whatever it is, and keeps the second."""

    def select(self, parents, log_probs, entropies):
        return np.flatnonzero(parents == 0)[1:]


@dataclass(frozen=True)
class DropsUncertain(Threshold):
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
    def two_dice(chance):
        first = chance.draws(np.array([1.0, 0.0, 3.0]), 0)
        return first, chance.accepts(0.25, 1) if first else None

    law = dict(outcomes(two_dice))
    assert law == {(0, None): 0.25, (2, False): 0.5625, (2, True): 0.1875}


SHAPES = {
    "no tree": (Threshold(0, 0.5), 2),
    "chain": (Threshold(1, 1e-9), 3),
    "bushy": (Threshold(2, 1e-9), 2),
    "threshold": (Threshold(2, 0.25), 2),
    "deep threshold": (Threshold(2, 0.3), 3),
    "every token": (Threshold(3, 1e-9), 1),
}


@pytest.mark.parametrize("acceptance", Acceptance)
@pytest.mark.parametrize("shape", SHAPES)
def test_the_law_is_the_targets(shape, acceptance):
    policy, max_depth = SHAPES[shape]
    for seed in SEEDS:
        assert lint(policy, acceptance, seed, max_depth).error() <= TOLERANCE


def worst(shape, acceptance=Acceptance.REJECTION, **parts):
    return max(replace(lint(shape, acceptance, seed), **parts).error() for seed in SEEDS)


def test_a_policy_that_reads_the_drawn_token_is_caught():
    assert worst(SHAPES["threshold"][0]) <= TOLERANCE
    assert worst(SHAPES["threshold"][0], report=drawn_tokens_own) > 0.01


def test_dropping_a_drawn_node_for_its_own_entropy_is_caught():
    assert worst(DropsUncertain(2, 1e-9)) > 0.01


def test_skipping_an_earlier_sibling_is_caught():
    assert worst(SkipsASibling(2, 1e-9)) > 0.01


@pytest.mark.parametrize("shape", [SkipsASibling(2, 1e-9), DropsUncertain(2, 1e-9)])
@pytest.mark.parametrize("acceptance", [mode for mode in Acceptance if not mode.draws_children])
def test_the_other_modes_allow_any_shape(shape, acceptance):
    assert worst(shape, acceptance) <= TOLERANCE


def test_a_residual_that_keeps_the_rejected_mass_is_caught():
    def decide_by_wrong_residual(target_weights, children, row, chance):
        draft = dict(zip(row.token_ids.tolist(), row_probs(row), strict=True))
        for index, token in enumerate(children):
            if chance.accepts(min(1.0, target_weights[token] / draft[token]), index):
                return token
        return chance.draws(target_weights, len(children))

    assert worst(SHAPES["chain"][0], decide=decide_by_wrong_residual) > 0.01
