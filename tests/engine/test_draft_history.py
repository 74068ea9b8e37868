"""A sequence is drafted for while that pays for it; what it shows is noticed in 16 rounds."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from canopy.engine.draft_history import (
    LEAST_ROUNDS,
    PAUSES,
    DraftHistories,
    DraftHistory,
    StepTimes,
    estimated_asking_tokens,
)


def rounds(history, gains, is_skipped=False):
    """In which rounds it asks, whose gains would be these."""
    asked = []
    for gain in gains:
        asked.append(history.asks(is_skipped))
        if asked[-1]:
            history.add(gain)
    return asked


@given(st.lists(st.floats(0.0, 16.0), max_size=80))
def test_what_never_loses_is_always_drafted_for(gains):
    assert all(rounds(DraftHistory(), gains))


def test_what_only_loses_is_asked_for_once_in_fifteen_rounds():
    asked = rounds(DraftHistory(), [-0.2] * 400)
    assert asked[: LEAST_ROUNDS + PAUSES[0]] == [True] * LEAST_ROUNDS + [False] * PAUSES[0]
    late = asked[100:]
    assert sum(late) / len(late) <= 1.0 / PAUSES[-1]
    assert max(PAUSES) + 1 <= 16


@pytest.mark.parametrize("num_before", [0, 5, 40, 200])
def test_a_text_that_turns_round_is_noticed_within_16_rounds(num_before):
    history = DraftHistory()
    rounds(history, [-0.3] * num_before)
    assert all(rounds(history, [1.0] * 40)[16:])
    history = DraftHistory()
    rounds(history, [0.3] * num_before)
    assert not all(rounds(history, [-0.3] * 16))


def test_a_lucky_round_buys_few_others():
    history = DraftHistory()
    rounds(history, [-0.2] * 100)
    gains = [0.8, *[-0.2] * 39]
    while not history.asks(False):
        pass
    history.add(gains[0])
    assert sum(rounds(history, gains[1:])) <= 8


def test_while_drafting_does_not_pay_for_all_the_new_and_the_paying_are_asked_for():
    paying, losing = DraftHistory(), DraftHistory()
    assert all(rounds(paying, [0.5] * 30, is_skipped=True))
    asked = rounds(losing, [-0.5] * 100, is_skipped=True)
    assert sum(asked) == LEAST_ROUNDS
    assert any(rounds(losing, [-0.5] * 16))


def test_fixed_policies_draft_at_a_loss_and_sequences_do_not_share():
    histories = DraftHistories()
    for _ in range(30):
        assert histories.asks(1, False, is_skipped=False)
        histories.add(1, -1.0)
        if histories.asks(2, True, is_skipped=False):
            histories.add(2, -1.0)
        assert histories.asks(3, True, is_skipped=False)
        histories.add(3, 1.0)
    assert not histories.asks(1, False, is_skipped=True)
    assert not all(histories.asks(2, True, is_skipped=False) for _ in range(2))
    histories.finish(2)
    assert all(histories.asks(2, True, is_skipped=False) for _ in range(2))


def test_asking_costs_what_steps_with_trees_take_longer():
    times = StepTimes()
    for _ in range(LEAST_ROUNDS):
        times.add(13.0, 1, 1)
    assert times.asking_tokens(1, 0.125) == 0.125  # nothing to compare with
    times.add(10.0, 1, 0)
    times.add(20.0, 2, 0)
    for _ in range(LEAST_ROUNDS):
        times.add(12.0, 1, 1)
    assert times.asking_tokens(1, 9.0) == pytest.approx(0.2)
    assert times.asking_tokens(2, 9.0) == pytest.approx(0.2)
    assert times.asking_tokens(1, 0.05) == pytest.approx(0.1)
    assert times.asking_tokens(3, 0.125) == 0.125
    times.add(1e9, 1, 1)  # a machine that hung
    assert times.asking_tokens(1, 9.0) < 0.5
    for _ in range(500):
        times.add(22.0, 2, 2)
    assert times.asking_tokens(2, 9.0) == pytest.approx(0.1, rel=0.05)


def test_the_estimate_adds_up_what_was_timed():
    assert estimated_asking_tokens(10, 0.05, 1.0, 10.0) == pytest.approx(0.5 + 0.1)
    assert estimated_asking_tokens(0, 0.05, 1e6, 0.0) == pytest.approx(0.25)
