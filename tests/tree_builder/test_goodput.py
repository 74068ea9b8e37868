"""The price: the optimum of all forests by exhaustive search, and which way each pressure pulls."""

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from canopy.tree_builder.goodput import (
    DraftGate,
    SpeedupAverage,
    best_at,
    best_ratio,
    costs_with_blocks,
    time_weight,
)


@st.composite
def forests(draw, max_nodes=8):
    """Trees of two sequences as one array: parents (-1 below an anchor) and survivals."""
    num_nodes = draw(st.integers(0, max_nodes))
    parents, survivals = [], []
    for node in range(num_nodes):
        parent = draw(st.integers(-1, node - 1))
        above = 1.0 if parent < 0 else survivals[parent]
        parents.append(parent)
        survivals.append(above * draw(st.sampled_from([0.1, 0.3, 0.5, 0.8, 1.0])))
    return parents, survivals


increments = st.lists(st.sampled_from([0.0, 0.0, 0.2, 1.0, 4.0]), min_size=17, max_size=17)
smooth = st.floats(0.0, 3.0).map(lambda slope: [slope] * 17)
# Step times of 0, 1, ... nodes: lines and step functions.
step_times = st.builds(
    lambda base, steps: base + np.concatenate(([0.0], np.cumsum(steps))),
    st.floats(0.5, 20.0),
    st.one_of(increments, smooth),
)


def closed_forests(parents):
    """Every set of nodes that is closed under ancestors."""
    for size in range(len(parents) + 1):
        for nodes in itertools.combinations(range(len(parents)), size):
            if all(parents[node] < 0 or parents[node] in nodes for node in nodes):
                yield nodes


def falling(survivals):
    return np.sort(np.array(survivals, np.float64))[::-1]


@given(forests(), step_times, st.integers(1, 4))
def test_no_forest_brings_more_tokens_a_millisecond(forest, costs_ms, base):
    parents, survivals = forest
    best = max(
        (base + sum(survivals[node] for node in nodes)) / costs_ms[len(nodes)]
        for nodes in closed_forests(parents)
    )
    found = best_ratio(falling(survivals), base, costs_ms)
    assert found.goodput == pytest.approx(best)
    assert found.cost_ms == costs_ms[found.num_nodes]


@given(forests(), step_times, st.floats(0.0, 2.0))
def test_no_forest_is_worth_more_at_a_given_goodput(forest, costs_ms, goodput):
    parents, survivals = forest
    best = max(
        2 + sum(survivals[node] for node in nodes) - goodput * costs_ms[len(nodes)]
        for nodes in closed_forests(parents)
    )
    found = best_at(falling(survivals), 2, costs_ms, goodput)
    assert found.expected_tokens - goodput * found.cost_ms == pytest.approx(best)


@given(forests(), step_times)
def test_the_price_parts_what_is_kept_from_what_is_not(forest, costs_ms):
    survivals = falling(forest[1])
    found = best_ratio(survivals, 1.0, costs_ms)
    assert np.all(survivals[: found.num_nodes] >= found.price)
    assert np.all(survivals[found.num_nodes :] <= found.price)


@given(forests(), st.floats(0.01, 3.0), st.floats(0.5, 20.0))
def test_on_a_line_the_price_is_goodput_times_slope(forest, slope, base_ms):
    survivals = falling(forest[1])
    costs_ms = base_ms + slope * np.arange(len(survivals) + 9)
    found = best_ratio(survivals, 1.0, costs_ms)
    price = found.goodput * slope
    assert np.all(survivals[: found.num_nodes] >= price - 1e-9)
    assert np.all(survivals[found.num_nodes :] <= price + 1e-9)


def test_a_stair_that_is_paid_for_is_filled():
    costs_ms = np.array([10.0, 14.0, 14.0, 14.0, 14.0, 30.0])
    assert best_ratio(np.array([0.5, 0.45, 0.4, 0.35, 0.3]), 1.0, costs_ms).num_nodes == 4
    assert best_ratio(np.array([0.3, 0.05, 0.03]), 1.0, costs_ms).num_nodes == 0


@given(forests(), st.floats(0.05, 2.0), st.integers(1, 32), st.integers(0, 80))
def test_waiting_requests_and_a_tight_cache_never_add_nodes(forest, slope, running, free):
    survivals = falling(forest[1])
    costs_ms = 10.0 + slope * np.arange(len(survivals) + 9)
    goodput = running / 10.0
    free_choice = best_at(survivals, running, costs_ms, goodput)
    queued = best_at(survivals, running, costs_ms, goodput * time_weight(running, 20))
    tight = best_at(survivals, running, costs_with_blocks(costs_ms, running, free), goodput)
    assert queued.num_nodes <= free_choice.num_nodes
    assert tight.num_nodes <= free_choice.num_nodes


def test_without_a_free_block_nothing_uncertain_is_drafted():
    costs_ms = costs_with_blocks(10.0 + 0.1 * np.arange(20), 4, 0)
    assert best_ratio(np.full(9, 0.99), 4.0, costs_ms).num_nodes == 0
    assert np.array_equal(costs_with_blocks(np.arange(1.0, 9.0), 4, 8), np.arange(1.0, 9.0))


def test_an_empty_queue_costs_nothing_and_a_long_one_a_bounded_part():
    assert time_weight(8, 0) == 1.0
    assert 1.0 < time_weight(8, 8) < time_weight(8, 1000) < 1.5


def run_of(gain, num_rounds=100):
    return SpeedupAverage(tokens=gain, num_rounds=num_rounds)


def test_the_switch_has_hysteresis():
    gate = DraftGate().after(run_of(1.001))
    assert gate.is_on
    gate = gate.after(run_of(0.99))
    assert not gate.is_on
    assert not gate.after_trial(1.01).is_on
    assert gate.after_trial(1.03).is_on


def test_a_few_unlucky_rounds_do_not_switch_drafting_off():
    assert DraftGate().after(run_of(0.5, num_rounds=8)).is_on


@given(st.floats(0.0, 100.0), st.floats(0.1, 200.0), st.integers(1, 40))
def test_trials_of_a_drafter_that_does_not_pay_cost_little(draft_ms, step_ms, num_failures):
    assert DraftGate().next_draft(draft_ms, step_ms) == 1
    steps = DraftGate(False, num_failures).next_draft(draft_ms, step_ms)
    assert 8 <= steps <= 256
    assert steps == 256 or draft_ms <= 0.01 * step_ms * steps


def test_trials_grow_rarer_until_drafting_pays_again():
    gate, waits = DraftGate(), []
    for _ in range(4):
        gate = gate.after(run_of(0.9))
        waits.append(gate.next_draft(0.1, 50.0))
        gate = gate.after_trial(1.5)
    assert waits == [8, 16, 32, 64]
    assert gate.after(run_of(1.2)).after(run_of(0.9)).next_draft(0.1, 50.0) == 8


def test_the_long_run_is_the_mean_of_few_steps_and_forgets_what_is_long_past():
    run = SpeedupAverage().after(2.0, 1.0, 1)
    assert run.gain == 2.0
    run = run.after(1.0, 1.0, 1)
    assert run.gain == pytest.approx(1.5)
    assert run.after(4.0, 1.0, 400).gain == pytest.approx(4.0, abs=0.02)
    for _ in range(400):
        run = run.after(3.0, 1.5, 1)
    assert run.gain == pytest.approx(2.0, abs=0.01)
