"""Counting the turns until the budget follows."""

import math

from bench.load_step import Moment, turns_to_follow


def moments(*phases):
    """Phases of (running, nodes), one turn each."""
    flat = [(phase, *pair) for phase, pairs in enumerate(phases) for pair in pairs]
    return [
        Moment(0.1 * turn, phase, float(turn), running, nodes, 0.1, 1.0, 1.0)
        for turn, (phase, running, nodes) in enumerate(flat)
    ]


def test_turns_are_counted_from_the_change_to_the_settled_band():
    steps = moments([(1, 9.0)] * 4, [(1, 9.0), (32, 9.0), (32, 5.0), (32, 1.0)] + [(32, 1.0)] * 8)
    assert turns_to_follow(steps, 1, lambda running: running > 16) == 2


def test_a_budget_that_is_right_at_once_takes_no_turn():
    steps = moments([(1, 9.0)] * 4, [(32, 1.0)] * 8)
    assert turns_to_follow(steps, 1, lambda running: running > 16) == 0


def test_a_load_that_never_came_is_never_followed():
    steps = moments([(1, 9.0)] * 4, [(1, 9.0)] * 8)
    assert math.isinf(turns_to_follow(steps, 1, lambda running: running > 16))
