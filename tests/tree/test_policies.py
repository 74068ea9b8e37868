"""Policies: limits, closure, nesting, and the optimality of topn and static_optimal."""

import functools
import itertools
import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from canopy.config import TreeConfig
from canopy.sampling import PolicyName
from canopy.tree import DraftTree
from canopy.tree.policies import PolicySettings, select, widths

POLICIES = [policy for policy in PolicyName if policy is not PolicyName.OFF]


@st.composite
def proposals(draw, max_nodes=24):
    """Parents and edge log-probs, siblings falling, as every source offers them."""
    num_nodes = draw(st.integers(0, max_nodes))
    parents = [-1] + [draw(st.integers(0, node)) for node in range(num_nodes)]
    last: dict[int, float] = {}
    log_probs = [0.0]
    for parent in parents[1:]:
        last[parent] = last.get(parent, 0.0) - draw(st.sampled_from([0.0, 0.25, 0.7, 1.5]))
        log_probs.append(last[parent])
    return np.array(parents, np.int32), np.array(log_probs, np.float32)


limits = st.builds(
    PolicySettings,
    name=st.sampled_from(POLICIES),
    node_budget=st.integers(0, 20),
    max_depth=st.integers(1, 6),
    max_branch=st.integers(1, 4),
    threshold=st.sampled_from([0.01, 0.1, 0.4]),
    entropy_bits=st.sampled_from([(0.5, 1.5), (1.0, 2.5)]),
    survival_threshold=st.sampled_from([0.05, 0.3]),
    sibling_rates=st.sampled_from([(0.6, 0.2, 0.1), (0.5,)]),
)


def chosen(settings, proposal):
    parents, log_probs = proposal
    return select(settings, parents, log_probs, entropies_of(log_probs))


def entropies_of(log_probs):
    """Any function of the node will do: 0 to 3 bits."""
    return (-4.0 * np.asarray(log_probs) + 0.6 * np.arange(len(log_probs))) % 3.0


def tree_of(parents):
    return DraftTree(np.zeros(len(parents), np.int32), parents)


def path_log_probs(parents, log_probs):
    tree = tree_of(parents)
    return [math.fsum(log_probs[i] for i in tree.path(node)) for node in range(len(parents))]


@given(limits, proposals())
def test_a_selection_is_a_subtree_within_every_limit(settings, proposal):
    nodes = chosen(settings, proposal)
    assert list(nodes) == sorted(set(nodes))
    assert len(nodes) <= settings.node_budget
    tree = tree_of(proposal[0]).subtree(nodes)
    assert tree.depths.max() <= settings.max_depth
    assert max(map(len, tree.children)) <= settings.max_branch


@given(limits, proposals())
def test_a_larger_budget_adds_nodes_and_takes_none_away(settings, proposal):
    larger = chosen(replace(settings, node_budget=settings.node_budget + 1), proposal)
    assert set(chosen(settings, proposal)) <= set(larger)


@given(limits, proposals())
def test_siblings_are_taken_in_order(settings, proposal):
    nodes = set(chosen(settings, proposal))
    for siblings in tree_of(proposal[0]).children:
        taken = [node in nodes for node in siblings]
        assert taken == sorted(taken, reverse=True)


@given(limits, proposals())
def test_a_node_left_out_stays_out_when_the_proposal_grows(settings, proposal):
    parents, log_probs = proposal
    depths = tree_of(parents).depths
    order = np.argsort(depths, kind="stable")  # level by level, as proposals grow
    renumbered = np.argsort(order)
    parents = np.where(depths[order] == 0, -1, renumbered[parents[order]])
    log_probs, depths = log_probs[order], depths[order]
    final = set(chosen(settings, (parents, log_probs)))
    for depth in range(1, depths.max() + 1):
        size = int(np.searchsorted(depths, depth, side="right"))
        early = set(chosen(settings, (parents[:size], log_probs[:size])))
        assert final & set(range(size)) <= early


@given(proposals(), st.integers(1, 8))
def test_chain_is_the_path_of_first_children(proposal, budget):
    nodes = chosen(PolicySettings(PolicyName.CHAIN, budget, 5, 4, 0.1), proposal)
    tree = tree_of(proposal[0])
    expected, node = [], 0
    while tree.children[node] and len(expected) < min(budget, 5):
        node = tree.children[node][0]
        expected.append(node)
    assert list(nodes) == sorted(expected)


@given(proposals(max_nodes=9), st.integers(1, 6), st.integers(1, 4))
def test_topn_gathers_the_most_survival_of_all_trees_of_its_size(proposal, budget, max_depth):
    parents, log_probs = proposal
    survival = np.exp(path_log_probs(parents, log_probs))
    depths = tree_of(parents).depths

    def is_tree(nodes):
        kept = {0, *nodes}
        return all(int(parents[n]) in kept and depths[n] <= max_depth for n in nodes)

    subsets = itertools.combinations(range(1, len(parents)), budget)
    smaller = (c for n in range(budget) for c in itertools.combinations(range(1, len(parents)), n))
    best = max(survival[list(s)].sum() for s in itertools.chain(subsets, smaller) if is_tree(s))
    nodes = chosen(PolicySettings(PolicyName.TOPN, budget, max_depth, 99, 0.1), proposal)
    assert survival[nodes].sum() == pytest.approx(best)


@given(limits, proposals())
def test_threshold_keeps_what_is_probable_enough(settings, proposal):
    settings = replace(settings, name=PolicyName.THRESHOLD, node_budget=99, max_branch=99)
    survival = np.exp(path_log_probs(*proposal))
    depths = tree_of(proposal[0]).depths
    expected = [
        node
        for node in range(1, len(survival))
        if survival[node] >= settings.threshold and depths[node] <= settings.max_depth
    ]
    assert list(chosen(settings, proposal)) == expected


@given(proposals(), st.floats(0.01, 0.5))
def test_policies_of_least_survival_differ_by_their_number_alone(proposal, least):
    threshold = PolicySettings(PolicyName.THRESHOLD, 9, 4, 3, least)
    survival = PolicySettings(PolicyName.SURVIVAL, 9, 4, 3, 0.9, survival_threshold=least)
    assert list(chosen(threshold, proposal)) == list(chosen(survival, proposal))


@given(proposals(), st.integers(0, 60))
def test_entropy_gives_each_node_the_children_that_its_bits_allow(proposal, budget):
    tree = TreeConfig(max_depth=8, max_branch=4, threshold=1e-9)
    settings = PolicySettings.of_request(PolicyName.ENTROPY, budget, tree)
    assert settings.node_budget == min(budget, 48)
    nodes = set(chosen(settings, proposal))
    bits = entropies_of(proposal[1])
    for node, children in enumerate(tree_of(proposal[0]).children):
        allowed = int(np.select([bits[node] < 1.0, bits[node] < 1.75, bits[node] < 2.5], [1, 2, 3]))
        taken = [child for child in children if child in nodes]
        assert taken == children[: len(taken)]
        assert len(taken) <= allowed
        if (node == 0 or node in nodes) and len(nodes) < settings.node_budget:
            deep = tree_of(proposal[0]).depths[node] == 8
            assert len(taken) == (0 if deep else min(allowed, len(children)))


def sequoia_optimum(rates, budget, depth):
    """Most accepted nodes of a tree of `budget` nodes below a node, by Sequoia's recursion.

    best(n, d, j): n nodes in the subtrees of the children j, j + 1, ... of one node.
    """

    @functools.cache
    def best(num, depth, child):
        if num == 0 or depth == 0 or child == len(rates):
            return 0.0
        return max(
            best(num, depth, child + 1),
            *(
                rates[child] * (1.0 + best(below, depth - 1, 0))
                + best(num - 1 - below, depth, child + 1)
                for below in range(num)
            ),
        )

    return best(budget, depth, 0)


@given(st.lists(st.floats(0.01, 0.4), min_size=1, max_size=4), st.integers(1, 9), st.integers(1, 4))
def test_static_optimal_reaches_the_optimum_of_the_dynamic_program(falls, budget, depth):
    rates = tuple(sorted((fall / sum(falls) * 0.95 for fall in falls), reverse=True))
    settings = PolicySettings(
        PolicyName.STATIC_OPTIMAL, budget, depth, 99, 0.1, sibling_rates=rates
    )
    parents, edges = [-1], [1.0]
    depths = [0]
    for node in itertools.count():  # every node down to `depth`, siblings side by side
        if node == len(parents) or depths[node] == depth or len(parents) > 400:
            break
        parents += [node] * len(rates)
        edges += rates
        depths += [depths[node] + 1] * len(rates)
    parents = np.array(parents, np.int32)
    nodes = select(settings, parents, np.zeros(len(parents)), np.zeros(len(parents)))
    survival = np.exp(path_log_probs(parents, np.log(edges)))
    assert survival[nodes].sum() == pytest.approx(sequoia_optimum(rates, budget, depth))


@given(limits, proposals())
def test_widths_leave_out_no_slot_that_select_takes(settings, proposal):
    parents, log_probs = proposal
    tree = tree_of(parents)
    # A sibling's bound falls at least as 1/j, as the probabilities of one distribution do.
    for siblings in tree.children:
        for index, node in enumerate(siblings):
            log_probs[node] = min(log_probs[node], -math.log(index + 1))
    paths = np.array(path_log_probs(parents, log_probs))
    selected = set(chosen(settings, (parents, log_probs)))
    for node, depth in enumerate(tree.depths):
        entropy = entropies_of(log_probs)[node : node + 1]
        [width] = widths(settings, int(depth), paths[node : node + 1], entropy)
        assert len(selected & set(tree.children[node])) <= width <= settings.max_branch


def test_uniform_is_the_full_tree_cut_breadth_first():
    parents = np.array([-1, 0, 0, 0, 1, 1, 2, 2, 3, 3])
    settings = PolicySettings(PolicyName.UNIFORM, 6, 4, 2, 0.1)
    nodes = select(settings, parents, np.zeros(10), np.zeros(10))
    assert list(nodes) == [1, 2, 4, 5, 6, 7]


@pytest.mark.parametrize(("name", "branch"), [(PolicyName.UNIFORM, 3), (PolicyName.TOPN, 8)])
def test_the_children_of_uniform_have_a_limit_of_their_own(name, branch):
    tree = TreeConfig(max_branch=8, uniform_branch=3)
    assert PolicySettings.of_request(name, 40, tree).max_branch == branch
    narrow = replace(tree, max_branch=2)
    assert PolicySettings.of_request(name, 40, narrow).max_branch == 2


def test_off_drafts_and_selects_nothing():
    settings = PolicySettings(PolicyName.OFF, 8, 4, 2, 0.1)
    assert list(widths(settings, 0, np.zeros(3), np.zeros(3))) == [0, 0, 0]
    assert len(select(settings, [-1, 0, 0], [0, 0, 0], [0, 0, 0])) == 0
