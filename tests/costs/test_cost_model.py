"""Cost models: rising, nearest to the measurements, and corrected within bounds."""

import dataclasses
import json
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from canopy.costs.cost_model import (
    DEFAULT_COST_MODEL,
    CostCorrection,
    CostModel,
    StepTimesMs,
    fit,
)

SEQUENCES, TOKENS = (1, 4, 16), (1, 4, 8, 16, 32)
tables = st.lists(
    st.lists(st.one_of(st.just(math.nan), st.floats(0.5, 90.0)), min_size=4, max_size=4).map(
        lambda row: [*row, 40.0]
    ),
    min_size=3,
    max_size=3,
)
any_number = st.floats(allow_nan=True, allow_infinity=True)


@given(tables, st.booleans(), st.integers(1, 40))
def test_a_fit_never_falls_with_tokens_or_sequences(table, is_step_function, num_sequences):
    model = fit(SEQUENCES, TOKENS, table, is_step_function)
    times = model.predict_ms(np.arange(1, 80), num_sequences)
    assert np.all(np.diff(times) >= -1e-9)
    assert np.all(times > 0.0)
    more = model.predict_ms(np.arange(1, 80), num_sequences + 1)
    assert np.all(more >= times - 1e-9)


@given(st.lists(st.floats(0.5, 9.0), min_size=5, max_size=5))
def test_a_fit_keeps_what_rises_already_and_the_mean_of_what_does_not(steps):
    rising = np.cumsum(steps)
    assert fit((1,), TOKENS, [rising]).step_ms[0] == pytest.approx(rising)
    shuffled = rising[[1, 0, 2, 4, 3]]
    fitted = np.array(fit((1,), TOKENS, [shuffled]).step_ms[0])
    assert fitted.sum() == pytest.approx(shuffled.sum())
    assert fitted[0] == fitted[1] == pytest.approx(shuffled[:2].mean())


def test_times_lie_between_grid_points_on_a_line_or_on_the_next_stair():
    table = [[10.0, 12.0, 20.0, 20.0, 36.0]]
    line, padded = fit((1,), TOKENS, table), fit((1,), TOKENS, table, is_step_function=True)
    tokens = np.array([1, 6, 8, 9, 32, 40])
    assert line.predict_ms(tokens, 1) == pytest.approx([10.0, 16.0, 20.0, 20.0, 36.0, 44.0])
    assert padded.predict_ms(tokens, 1) == pytest.approx([10.0, 20.0, 20.0, 20.0, 36.0, 44.0])


def test_a_missing_measurement_takes_the_next_one_of_its_row():
    model = fit((4,), TOKENS, [[math.nan, 9.0, math.nan, 15.0, math.nan]])
    assert model.step_ms == ((9.0, 9.0, 15.0, 15.0, 15.0),)


@given(tables)
def test_a_model_survives_json(table):
    model = fit(SEQUENCES, TOKENS, table)
    assert CostModel.from_json(json.loads(json.dumps(dataclasses.asdict(model)))) == model


@pytest.mark.parametrize(
    "change",
    [
        {"tokens": [1, 1]},
        {"step_ms": [[2.0, 1.0]]},
        {"step_ms": [[1.0]]},
        {"step_ms": [[1.0, math.nan]]},
        {"step_ms": [[0.0, 1.0]]},
        {"step_ms": "x"},
        {"sequences": [0]},
        {"tokens": None},
    ],
)
def test_a_malformed_table_is_refused(change):
    table = {"sequences": [1], "tokens": [1, 2], "step_ms": [[1.0, 2.0]], "is_step_function": False}
    assert CostModel.from_json(table).predict_ms(np.array([2]), 1) == 2.0
    with pytest.raises(ValueError):  # noqa: PT011
        CostModel.from_json(table | change)


def test_the_default_charges_every_token():
    assert np.all(np.diff(DEFAULT_COST_MODEL.predict_ms(np.arange(1, 600), 32)) > 0.0)


times = st.builds(StepTimesMs, any_number, any_number, any_number, any_number, st.integers(1, 64))


@given(st.lists(times, max_size=40))
def test_a_correction_stays_usable_whatever_is_measured(steps):
    correction = CostCorrection()
    for step in steps:
        correction = correction.after(step)
        for predicted_ms, num_sequences in ((5.0, 1), (20.0, 32)):
            step_ms = correction.step.corrected_ms(predicted_ms, num_sequences)
            assert predicted_ms / 21.0 <= step_ms < math.inf
            assert step_ms < correction.step.corrected_ms(predicted_ms + 1.0, num_sequences)
        assert math.isfinite(correction.draft_ms)
        assert correction.draft_ms >= 0.0


@pytest.mark.parametrize("num_sequences", [1, 8, 32])
def test_a_correction_finds_the_machine_that_it_runs_on(num_sequences):
    """Steps that are all alike do not tell why they take longer: a quarter raises the ratio."""
    correction = CostCorrection()
    for _ in range(60):
        correction = correction.after(StepTimesMs(30.0, 2.0, 1.0, 10.0, num_sequences))
    assert correction.step.corrected_ms(10.0, num_sequences) == pytest.approx(30.0, rel=0.1)
    assert correction.step.ratio == pytest.approx(1.5, rel=0.1)
    assert (correction.draft_ms, correction.overhead_ms) == pytest.approx((2.0, 1.0))


@pytest.mark.parametrize(("ratio", "sequence_ms"), [(1.0, 0.0), (2.5, 0.0), (1.2, 0.7), (0.8, 0.0)])
def test_steps_that_differ_tell_slow_steps_from_sequences_that_cost(ratio, sequence_ms):
    correction = CostCorrection()
    for index in range(120):
        predicted_ms, num_sequences = 8.0 + 7.0 * (index % 3), 1 + 5 * (index % 4)
        verify_ms = ratio * predicted_ms + sequence_ms * num_sequences
        correction = correction.after(StepTimesMs(verify_ms, 0.0, 0.0, predicted_ms, num_sequences))
    for predicted_ms, num_sequences in ((8.0, 1), (30.0, 16)):
        expected = ratio * predicted_ms + sequence_ms * num_sequences
        given = correction.step.corrected_ms(predicted_ms, num_sequences)
        assert given == pytest.approx(expected, rel=0.08)
    assert correction.step.ratio == pytest.approx(ratio, rel=0.12)


def test_one_stall_moves_little():
    correction = CostCorrection()
    for _ in range(40):
        correction = correction.after(StepTimesMs(10.0, 0.0, 0.0, 10.0, 4))
    stalled = correction.after(StepTimesMs(900.0, 0.0, 0.0, 10.0, 4))
    assert stalled.step.corrected_ms(10.0, 4) < 11.0
