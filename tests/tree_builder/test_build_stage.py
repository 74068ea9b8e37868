"""The build stage: fixed policies alone, priced sequences in one selection, and feedback."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from canopy.config import Deployment, TargetConfig, TreeConfig
from canopy.costs.cost_model import CostModel
from canopy.costs.profile import Profile
from canopy.protocol.messages import BuildRequest
from canopy.sampling import Acceptance, PolicyName
from canopy.tree.forest import split_ragged
from canopy.tree.policies import PolicySettings, select
from canopy.tree_builder.load_monitor import KnownLoad
from canopy.tree_builder.server_load import LoadState, ServerLoad
from canopy.tree_builder.stage import PolicyTreeBuilder, make_tree_builder

TREE = TreeConfig(max_depth=3, max_branch=2)
BUSHY = ([-1, 0, 0, 1, 1, 2], [0.0, -0.1, -0.2, -0.3, -2.0, -0.1])
FIXED = [policy for policy in PolicyName if policy is not PolicyName.PRICED]


def one(number):
    return np.array([number], np.int32)


def request(
    proposals,
    policies,
    budgets,
    modes=None,
    waiting=0,
    prompt_tokens=0,
    free_blocks=1000,
    last=None,
):
    """last: sequences, drafted, accepted, verify ms, draft ms, step ms of the step before."""
    empty_floats = np.zeros(0, np.float32)
    parents = [np.array(parents, np.int32) for parents, _ in proposals]
    last = last or [0] * 6
    return BuildRequest(
        num_nodes=np.array([len(p) - 1 for p in parents], np.int32),
        parents=np.concatenate([np.zeros(0, np.int32), *parents]),
        log_probs=np.concatenate([empty_floats, *(np.float32(logs) for _, logs in proposals)]),
        entropies=np.zeros(sum(map(len, parents)), np.float32),
        policies=np.array(policies, np.int32),
        node_budgets=np.array(budgets, np.int32),
        acceptances=np.array(modes or [Acceptance.GREEDY] * len(proposals), np.int32),
        num_running=one(len(proposals)),
        num_waiting=one(waiting),
        num_prompt_tokens=one(prompt_tokens),
        num_free_blocks=one(free_blocks),
        last_counts=np.array(last[:3], np.int32),
        last_times_ms=np.array(last[3:], np.float32),
    )


def chosen(reply):
    return [nodes.tolist() for nodes in split_ragged(reply.selected, reply.num_selected)]


def built(message, tree=TREE):
    reply = PolicyTreeBuilder(tree).build(message)
    assert reply.draft_next.tolist() == [1]
    return chosen(reply)


def test_each_sequence_has_its_own_policy_and_budget():
    policies = [PolicyName.CHAIN, PolicyName.UNIFORM, PolicyName.TOPN, PolicyName.OFF]
    message = request([BUSHY] * 4, policies, [4, 3, 3, 4])
    assert built(message) == [[1, 3], [1, 2, 3], [1, 2, 5], []]


@given(st.lists(st.tuples(st.sampled_from(FIXED), st.integers(0, 6)), min_size=1, max_size=5))
def test_the_stage_selects_as_a_fixed_policy_does(sequences):
    message = request([BUSHY] * len(sequences), *zip(*sequences, strict=True))
    logs = np.array(BUSHY[1], np.float32)
    expected = [
        select(PolicySettings.of_request(name, budget, TREE), BUSHY[0], logs, np.zeros(6)).tolist()
        for name, budget in sequences
    ]
    assert built(message) == expected


def test_no_sequences_give_an_empty_reply():
    assert built(request([], [], [])) == []


def test_the_limits_of_the_deployment_hold():
    target = TargetConfig(model=".")
    deployment = Deployment(target=target, tree=TreeConfig(max_depth=1, max_branch=1))
    reply = make_tree_builder(deployment).build(request([BUSHY], [PolicyName.TOPN], [6]))
    assert reply.selected.tolist() == [1]


CHEAP = Profile(cost_model=CostModel((1,), (1, 101), ((50.0, 55.0),)))
DEAR = Profile(cost_model=CostModel((1,), (1, 101), ((1.0, 101.0),)), overhead_ms=0.0)


def price(profile, *messages, **options):
    builder = PolicyTreeBuilder(TREE, profile, **options)
    replies = [builder.build(message) for message in messages]
    return replies[-1]


def priced(num_sequences, budget=9, **options):
    policies = [PolicyName.PRICED] * num_sequences
    return request([BUSHY] * num_sequences, policies, [budget] * num_sequences, **options)


def test_a_node_is_verified_iff_it_is_worth_its_price():
    assert chosen(price(CHEAP, priced(1))) == [[1, 2, 3, 4, 5]]
    assert chosen(price(DEAR, priced(1))) == [[]]
    reply = price(Profile(), priced(1))
    survivals = np.exp([-0.1, -0.2, -0.4, -2.1, -0.3])
    assert chosen(reply) == [(np.flatnonzero(survivals >= reply.price[0]) + 1).tolist()]


@given(st.integers(1, 12), st.integers(0, 6))
def test_priced_trees_keep_to_the_limits_of_their_sequence(num_sequences, budget):
    for nodes in chosen(price(CHEAP, priced(num_sequences, budget))):
        assert len(nodes) <= budget


def test_all_sequences_share_one_price():
    sure, poor = ([-1, 0, 1], [0.0, -0.05, -0.05]), ([-1, 0, 1], [0.0, -2.5, -1.0])
    message = request([poor, sure], [PolicyName.PRICED] * 2, [4, 4])
    assert chosen(price(Profile(), message)) == [[], [1, 2]]


@pytest.mark.parametrize("mode", [Acceptance.REJECTION, Acceptance.TRAVERSAL])
def test_drawn_children_pay_the_price_of_the_step_before(mode):
    def first_step(other):
        """Two drawn sequences, of which the second brings another proposal."""
        message = request([BUSHY, other], [PolicyName.PRICED] * 2, [9, 9], [mode] * 2)
        return chosen(price(Profile(), message))[0]

    rich, poor = ([-1, 0, 1, 2], [0.0, -0.01, -0.01, -0.01]), ([-1, 0], [0.0, -4.0])
    assert first_step(rich) == first_step(poor)
    one_step = priced(1, modes=[mode])
    first, second = price(Profile(), one_step), price(Profile(), one_step, one_step)
    survivals = np.exp([-0.1, -0.2, -0.4, -2.1, -0.3])
    assert chosen(second) == [(np.flatnonzero(survivals > first.price[0]) + 1).tolist()]


@given(st.floats(0.02, 0.98), st.floats(0.1, 30.0))
def test_what_is_too_unlikely_to_be_drafted_would_not_have_been_bought(survival, ms_per_row):
    profile = Profile(cost_model=CostModel((1,), (1, 101), ((10.0, 10.0 + 100 * ms_per_row),)))
    single = ([-1, 0], [0.0, math.log(survival)])
    builder = PolicyTreeBuilder(TREE, profile)
    last = None
    for _ in range(20):  # of which none is accepted, so that the shift comes into it
        reply = builder.build(request([single], [PolicyName.PRICED], [9], last=last))
        if survival < reply.least_survival[0]:
            assert chosen(reply) == [[]]
        num = int(reply.num_selected[0])
        last = (1, num, 0, 10.0 + ms_per_row * num, 0.1, 12.0)
    assert reply.least_survival[0] > 0.0


def test_a_full_cache_and_a_queue_shrink_the_trees():
    sizes = [
        price(Profile(), priced(4, **options)).num_selected.sum()
        for options in ({}, {"waiting": 50}, {"free_blocks": 3}, {"free_blocks": 0})
    ]
    assert sizes[0] >= sizes[1] > sizes[3] == 0
    assert sizes[0] > sizes[2]


def test_a_prompt_in_the_same_step_makes_nodes_dear_where_it_fills_the_machine():
    roof = Profile(cost_model=CostModel((1,), (1, 100, 200), ((10.0, 10.0, 60.0),)))
    assert chosen(price(roof, priced(1))) == [[1, 2, 3, 4, 5]]
    assert chosen(price(roof, priced(1), priced(1, prompt_tokens=150)))[0] != [1, 2, 3, 4, 5]


def test_requests_wait_wherever_somebody_sees_them_wait():
    def price_at(message, waiting):
        known = KnownLoad(ServerLoad(num_waiting=waiting), LoadState.STALE)
        reply = price(Profile(), message, read_load=lambda: known)
        assert reply.load_state.tolist() == [LoadState.STALE]
        return reply.num_selected.sum(), reply.price[0]

    assert price_at(priced(4, waiting=30), 0) == price_at(priced(4), 30)


def test_a_slower_machine_than_the_table_says_changes_no_tree_but_the_prediction():
    builder = PolicyTreeBuilder(TREE, Profile(overhead_ms=0.0))
    first = builder.build(priced(1))
    for _ in range(80):
        nodes = int(first.num_selected[0])
        rows_ms = 3.0 * (11.0 + 1.0 + nodes)
        last = builder.build(priced(1, last=(1, nodes, 1, rows_ms, 0.0, rows_ms)))
    assert chosen(last) == chosen(first)
    assert last.predicted_ms[0] == pytest.approx(3.0 * first.predicted_ms[0], rel=0.05)


def test_trees_shrink_where_less_is_accepted_than_foreseen_and_grow_back():
    doubtful = ([-1, 0, 0, 0], [0.0, -1.2, -1.6, -2.0])
    builder, sizes = PolicyTreeBuilder(TreeConfig(max_branch=4), Profile()), []
    last = None
    for step in range(200):
        reply = builder.build(request([doubtful], [PolicyName.PRICED], [9], last=last))
        nodes = int(reply.num_selected[0])
        sizes.append(nodes)
        last = (1, nodes, int(step >= 100 and nodes > 0), 12.0 + nodes, 0.1, 13.0 + nodes)
    assert sizes[99] < sizes[0] <= sizes[199]


def test_a_drafter_that_costs_more_than_it_brings_is_not_asked_every_step():
    builder = PolicyTreeBuilder(TREE, Profile(draft_ms=500.0))
    waits = {int(builder.build(priced(1)).draft_next[0]) for _ in range(60)}
    assert max(waits) > 8
    fixed = request([BUSHY], [PolicyName.TOPN], [4])
    assert builder.build(fixed).draft_next.tolist() == [1]


def test_lengths_that_do_not_fit_are_refused():
    message = priced(2)
    message.num_nodes = np.array([5, 9], np.int32)
    with pytest.raises(ValueError, match="parents"):
        PolicyTreeBuilder(TREE).build(message)
