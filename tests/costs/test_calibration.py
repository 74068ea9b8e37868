"""Scores are believed less the hotter a text is, from what was measured at two temperatures."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from canopy.costs.profile import GREEDY, SAMPLED, SAMPLED_TEMPERATURE, Profile
from canopy.tree.survival import Calibration

MEASURED = {GREEDY: Calibration(1.02, 0.03), SAMPLED: Calibration(0.89, -0.31)}
temperatures = st.floats(0.0, 100.0)


def acceptance(profile, temperature, log_prob=-0.5):
    return profile.calibration_of(temperature).siblings([log_prob])[0]


def test_both_measured_temperatures_have_their_own_map():
    profile = Profile(calibrations=MEASURED)
    assert profile.calibration_of(0.0) == MEASURED[GREEDY]
    found = profile.calibration_of(SAMPLED_TEMPERATURE)
    assert (found.slope, found.intercept) == pytest.approx((0.89, -0.31))


@given(temperatures, temperatures)
def test_a_hotter_text_accepts_less(one, other):
    profile = Profile(calibrations=MEASURED)
    cold, hot = sorted((one, other))
    assert acceptance(profile, cold) >= acceptance(profile, hot) - 1e-12


@given(temperatures, st.floats(0.05, 3.0), st.floats(0.05, 3.0))
def test_any_two_measurements_give_a_map_that_rises(temperature, cold, hot):
    measured = {GREEDY: Calibration(cold, 0.0), SAMPLED: Calibration(hot, 1.0)}
    assert Profile(calibrations=measured).calibration_of(temperature).slope > 0.0


@pytest.mark.parametrize("temperature", [0.0, 0.3, 0.8, 5.0])
def test_what_was_not_measured_is_believed(temperature):
    assert Profile().calibration_of(temperature) == Calibration()
    alone = Profile(calibrations={SAMPLED: Calibration(0.5, -1.0)})
    expected = Calibration() if temperature == 0.0 else Calibration(0.5, -1.0)
    assert alone.calibration_of(temperature) == expected
