"""Counting the steps until the budget follows."""

import math

from bench.serving.load_step import Moment, nodes_per_round, price, steps_to_follow


def moments(*phases):
    """Phases of (running, nodes a sequence), one step each."""
    flat = [(phase, *pair) for phase, pairs in enumerate(phases) for pair in pairs]
    rounds, drafted, seen = 0.0, 0.0, []
    for step, (phase, running, nodes) in enumerate(flat):
        seen.append(
            Moment(
                0.1 * step,
                phase,
                float(step),
                running,
                rounds,
                drafted,
                nodes,
                1.0 / (1.0 + nodes),
                1.0,
                1.0,
            )
        )
        rounds, drafted = rounds + running, drafted + running * nodes
    return seen


def steps(*phases):
    return steps_to_follow(moments(*phases), 1, lambda running: running > 16, nodes_per_round, 0.25)


def price_steps(*phases):
    return steps_to_follow(moments(*phases), 1, lambda running: running > 16, price, 0.02)


ALONE = [(1, 9.0)] * 20


def test_steps_are_counted_from_the_change_until_most_of_the_step_is_made():
    slow = [(1, 9.0)] * 3 + [(32, 9.0)] * 20 + [(32, 1.0)] * 60
    # Of ten steps in a row seven are new ones.
    assert steps(ALONE, slow) == 17
    assert steps(ALONE, [(1, 9.0)] * 3 + [(32, 9.0)] * 2 + [(32, 1.0)] * 60) == 0


def test_a_budget_that_comes_only_after_long_is_not_within_ten_steps():
    assert steps(ALONE, [(32, 9.0)] * 30 + [(32, 1.0)] * 60) > 10


def test_a_budget_that_stays_has_not_followed():
    assert math.isinf(steps(ALONE, [(32, 9.0)] * 60))


def test_single_trees_may_differ_from_the_mean():
    noisy = [(32, float(1 + 3 * (step % 4 == 0))) for step in range(60)]
    assert steps(ALONE, noisy) <= 2


def test_a_load_that_never_came_is_never_followed():
    assert math.isinf(steps(ALONE, [(1, 1.0)] * 60))


def test_a_price_follows_by_its_own_step():
    late = [(32, 9.0)] * 20 + [(32, 1.0)] * 60
    assert 10 < price_steps(ALONE, late) <= 20
    assert price_steps(ALONE, [(32, 1.0)] * 60) == 0
    assert math.isinf(price_steps(ALONE, [(32, 9.0)] * 60))
