"""Calibration: monotone, children within 1, recovered by the fit, corrected within bounds."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from canopy.tree.survival import (
    MAX_CORRECTION,
    Calibration,
    correct_log_odds,
    fit_calibration,
    updated_correction,
)

calibrations = st.builds(Calibration, st.floats(0.2, 3.0), st.floats(-3.0, 3.0))
children = st.lists(st.floats(-30.0, 0.0), min_size=1, max_size=8).map(
    lambda logs: sorted(logs, reverse=True)
)
any_number = st.floats(allow_nan=True, allow_infinity=True)


def log_odds(log_prob):
    return log_prob - math.log(-math.expm1(log_prob))


@given(calibrations, children)
def test_children_keep_their_order_and_share_one_acceptance(calibration, log_probs):
    calibrated = calibration.siblings(log_probs)
    assert calibrated == sorted(calibrated, reverse=True)
    assert max(calibrated) <= 0.0
    assert sum(map(math.exp, calibrated)) <= max(1.0, sum(map(math.exp, log_probs))) + 1e-9


@given(calibrations, st.floats(-20.0, -0.01))
def test_an_only_child_is_mapped_by_its_log_odds(calibration, log_prob):
    [calibrated] = calibration.siblings([log_prob])
    expected = calibration.slope * log_odds(log_prob) + calibration.intercept
    if calibrated < -1e-12:
        assert log_odds(calibrated) == pytest.approx(expected, abs=1e-3, rel=1e-3)


def test_the_default_believes_the_source():
    assert Calibration().siblings([-0.5, -2.0]) == [-0.5, -2.0]


def test_a_map_that_falls_is_refused():
    with pytest.raises(ValueError, match="rises"):
        Calibration(slope=-1.0)


def test_the_fit_finds_the_map_that_made_the_data():
    generator = np.random.default_rng(1)
    log_probs = np.log(generator.uniform(0.01, 0.99, 20_000))
    odds = 0.6 * (log_probs - np.log(-np.expm1(log_probs))) - 0.8
    accepted = generator.uniform(size=len(odds)) < 1.0 / (1.0 + np.exp(-odds))
    fitted = fit_calibration(log_probs, accepted)
    assert fitted.slope == pytest.approx(0.6, abs=0.05)
    assert fitted.intercept == pytest.approx(-0.8, abs=0.05)


@pytest.mark.parametrize("accepted", [True, False])
def test_a_fit_without_evidence_stays_finite_and_rising(accepted):
    for num in (0, 3, 500):
        fitted = fit_calibration(np.full(num, -0.7), np.full(num, accepted))
        assert fitted.slope > 0.0


def test_a_fit_that_would_step_the_order_round_is_not_used():
    log_probs = np.log(np.repeat([0.1, 0.9], 200))
    assert fit_calibration(log_probs, log_probs < -1.0) == Calibration()


PARENTS = np.array([-1, 0, 0, 1, -1, 4])


@given(
    st.lists(st.floats(-6.0, -0.01), min_size=6, max_size=6),
    st.floats(-MAX_CORRECTION, MAX_CORRECTION),
)
def test_a_shift_moves_every_edge_its_way_and_no_anchor(log_probs, log_odds_correction):
    logs = np.where(PARENTS < 0, 0.0, log_probs)
    moved = correct_log_odds(logs, PARENTS, log_odds_correction)
    assert np.all(moved[PARENTS < 0] == 0.0)
    assert np.all(moved <= 1e-12)
    assert math.exp(moved[1]) + math.exp(moved[2]) <= max(1.0, np.exp(logs[1:3]).sum()) + 1e-9
    assert (moved[3] - logs[3]) * np.sign(log_odds_correction) >= -1e-12
    assert log_odds(moved[5]) - log_odds(logs[5]) == pytest.approx(log_odds_correction, abs=1e-6)


@given(st.lists(st.tuples(any_number, any_number), max_size=60))
def test_the_shift_is_bounded_whatever_is_reported(outcomes):
    log_odds_correction = 0.0
    for num_accepted, expected in outcomes:
        log_odds_correction = updated_correction(log_odds_correction, num_accepted, expected)
        assert abs(log_odds_correction) <= MAX_CORRECTION


def test_the_shift_finds_the_acceptance_that_is_observed():
    log_probs, parents, log_odds_correction = np.array([0.0, math.log(0.6)]), np.array([-1, 0]), 0.0
    generator = np.random.default_rng(2)
    seen = []
    for _ in range(3000):
        expected = math.exp(correct_log_odds(log_probs, parents, log_odds_correction)[1])
        log_odds_correction = updated_correction(
            log_odds_correction, float(generator.uniform() < 0.45), expected
        )
        seen.append(expected)
    assert np.mean(seen[1000:]) == pytest.approx(0.45, abs=0.03)
