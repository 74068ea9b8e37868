"""Traversal keeps the target's distribution and accepts at least as much as rejection."""

from collections import Counter
from dataclasses import dataclass, replace

import numpy as np
import pytest
from enumeration import enumerate_outcomes
from exactness_check import Round, toy_conditional
from hypothesis import given, settings
from hypothesis import strategies as st

from canopy.acceptance import accept
from canopy.acceptance.random_source import accept_noise
from canopy.acceptance.rejection import Residual
from canopy.acceptance.result import VerificationResult
from canopy.acceptance.traversal import traverse
from canopy.sampling import Acceptance, SamplingParams
from canopy.tree import DraftTree, ProposalRow

EXACT = 1e-12
MODES = (Acceptance.REJECTION, Acceptance.TRAVERSAL)


@dataclass(frozen=True)
class Widths:
    """A static tree: the number of children by depth and by place in the level, all verified."""

    by_level: tuple[tuple[int, ...], ...]

    def widths(self, depth, path_log_probs, entropies):
        level = self.by_level[depth]
        return np.array([level[place % len(level)] for place in range(len(path_log_probs))], int)

    def select(self, parents, log_probs, entropies):
        return np.arange(1, len(parents))


CHAIN = Widths(((1,), (1,), (1,)))
BUSHY = Widths(((2,), (2,)))
UNEVEN = Widths(((2,), (1, 2), (1, 0, 0)))


def round_of(shape, seed, acceptance=Acceptance.TRAVERSAL, vocab_size=3, **parts):
    models = toy_conditional(seed, vocab_size), toy_conditional(seed + 100, vocab_size)
    return Round(*models, shape, acceptance, len(shape.by_level), **parts)


def gain(shape, seed, **parts):
    """Expected tokens of a round by traversal, less those by rejection, both exact."""
    rejection, traversal = (
        round_of(shape, seed, mode, **parts).acceptance_length() for mode in MODES
    )
    return traversal - rejection


def extreme_conditional(seed, vocab_size):
    """Probabilities of 0, of about 1e-6 and of ordinary size, many of them equal."""

    def conditional(prefix):
        generator = np.random.default_rng([seed, *prefix])
        weights = generator.choice([0.0, 1e-6, 0.1, 0.3, 1.0], vocab_size)
        weights[generator.integers(vocab_size)] += 0.5
        return weights / weights.sum()

    return conditional


@settings(max_examples=80, deadline=None)
@given(
    seeds=st.tuples(st.integers(0, 9999), st.integers(0, 9999)),
    levels=st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=3), min_size=1, max_size=2),
    remainder=st.integers(0, 3),
)
def test_the_law_is_kept_by_any_static_tree_of_any_children(seeds, levels, remainder):
    """`remainder` 0..2 makes the children of a third of the prefixes deterministic, 3 of none."""
    target, draft = (extreme_conditional(seed, 3) for seed in seeds)
    shape = Widths(tuple(map(tuple, levels)))
    linted = Round(
        target,
        draft,
        shape,
        Acceptance.TRAVERSAL,
        len(levels),
        deterministic=lambda prefix: sum(prefix) % 3 == remainder,
    )
    assert linted.error() <= EXACT


def test_a_chain_is_never_accepted_less_far_than_by_rejection():
    gains = [gain(CHAIN, seed) for seed in range(40)]
    assert min(gains) >= -EXACT
    assert np.median(gains) > 0.01


@pytest.mark.parametrize("shape", [BUSHY, UNEVEN])
def test_toy_trees_are_not_accepted_less_far_than_by_rejection(shape):
    gains = [gain(shape, seed) for seed in range(8)]
    assert min(gains) >= -EXACT
    assert max(gains) > 0.01


def test_below_the_anchor_alone_traversal_is_rejection():
    for seed in range(20):
        assert abs(gain(Widths(((2,),)), seed)) <= EXACT


def test_deterministic_children_gain_nothing_and_lose_nothing():
    for seed in range(20):
        assert abs(gain(BUSHY, seed, deterministic=lambda prefix: True)) <= EXACT


def test_a_drafter_that_is_the_target_is_accepted_to_the_end_of_its_first_path():
    for seed in range(5):
        linted = replace(round_of(UNEVEN, seed), target=toy_conditional(seed + 100, 3))
        assert linted.acceptance_length() > 3 + 1 - 1e-6  # rows are rounded to float32


def forgetful(tree, rows, target_weights, random_source):
    """Traversal that keeps a node's weight when a child was rejected."""

    def visit(node, weight):
        residual = Residual(target_weights(node), rows[node], weight)
        for child in tree.children[node]:
            result = visit(child, residual.accept_probability(int(tree.token_ids[child])))
            if result:
                return result
        if not random_source.bernoulli(weight, node) or not residual.unnormalized_probs.any():
            return None
        return VerificationResult(
            tree.path(node), random_source.sample(residual.unnormalized_probs, 0)
        )

    return visit(0, 1.0) or VerificationResult([], 0)


def test_a_weight_that_is_not_lowered_is_caught():
    assert max(round_of(CHAIN, seed).error() for seed in range(3)) <= EXACT
    assert max(round_of(CHAIN, seed, traverse=forgetful).error() for seed in range(3)) > 0.01


# One tree of known tokens, through the noise

FAN = DraftTree(np.array([9, 0, 1, 2, 0, 1, 2, 3], np.int32), np.array([-1, 0, 0, 0, 1, 1, 4, 2]))
POINT_MASSES = [ProposalRow.empty()] * 8


def counted_traversal(weights_of, seed):
    asked = Counter()

    def target_weights(node):
        asked[node] += 1
        return weights_of(node)

    return traverse(FAN, POINT_MASSES, target_weights, accept_noise(seed, 4)), asked


def test_the_target_is_asked_once_at_most_and_never_for_a_rejected_leaf():
    uniform = np.full(4, 0.25)
    paths = set()
    for seed in range(200):
        result, asked = counted_traversal(lambda node: uniform, seed)
        paths.add(tuple(result.path))
        last = result.path[-1] if result.path else 0
        assert set(asked.values()) == {1}
        assert {node for node in asked if not FAN.children[node]} <= {last}
        assert last in asked
    assert len(paths) == 8


def test_nothing_is_asked_below_a_token_that_the_target_rules_out():
    without_0_and_1 = np.array([0.0, 0.0, 0.5, 0.5])
    for seed in range(50):
        result, asked = counted_traversal(lambda node: without_0_and_1, seed)
        assert result.path in ([], [3])
        assert set(asked) == {0, *result.path}


def test_no_target_is_asked_beside_a_path_that_is_certain():
    for seed in range(50):
        result, asked = counted_traversal(
            lambda node: np.eye(4)[[0, 0, 3, 3, 2, 3, 1, 3][node]], seed
        )
        assert (result.path, result.bonus) == ([1, 4, 6], 1)
        assert set(asked) == {0, 1, 4, 6}


def test_a_child_that_cannot_have_been_drawn_is_an_error():
    row = ProposalRow(np.array([0, 1], np.int32), np.log(np.array([0.5, 0.5], np.float32)))
    tree = DraftTree(np.array([9, 2], np.int32), np.array([-1, 0], np.int32))
    with pytest.raises(ValueError, match="not drawn"):
        list(enumerate_outcomes(lambda c: traverse(tree, [row, row], lambda node: np.ones(4), c)))


def params_of(seed, acceptance=Acceptance.TRAVERSAL, **changes):
    return SamplingParams(temperature=1.0, seed=seed, acceptance=acceptance, **changes)


def test_a_token_without_a_tree_is_that_of_rejection():
    anchor, rows = DraftTree.of_anchor(0), [ProposalRow.empty()]
    logits = np.random.default_rng(3).normal(0, 1, (1, 50)).astype(np.float32)
    for seed in range(50):
        results = [accept(anchor, rows, logits, params_of(seed, mode), 7) for mode in MODES]
        assert results[0] == results[1]
