"""The phases of an int8 step: the timed variant computes the same and accounts for its time."""

import time

import numpy as np
import pytest
from numba import njit

from bench.steps.cases import Case, StepTimer
from bench.steps.phases import TimedTeam, measure_phases, timed_steps, with_ticks
from canopy.config import TargetConfig
from canopy_kernels.cpu.threads import barrier, partition

CASES = (Case(1, 1), Case(1, 5))


@pytest.fixture(scope="module")
def target(tiny_folder):
    return TargetConfig(model=str(tiny_folder), dtype="int8", num_threads=2)


@njit(nogil=True)
def _fill(values, number, context):
    first, end = partition(context, len(values))
    for index in range(first, end):
        values[index] += number


@njit(nogil=True)
def _add_up(values, total, context):
    if context.worker == 0:
        total[0] = values.sum()


@njit(nogil=True)
def two_phases(values, total, context):
    for round_number in range(3):
        _fill(values, round_number, context)
        barrier(context)
    _add_up(values, total, context)


@pytest.mark.parametrize("num_workers", [1, 2])
def test_a_team_knows_the_phases_of_its_function_and_their_times(num_workers):
    team, values, total = TimedTeam(num_workers), np.zeros(1 << 22), np.zeros(1)
    team.run(two_phases, values, total)  # compiles
    values[:] = 0
    start = time.perf_counter()
    team.run(two_phases, values, total)
    whole_ms = 1e3 * (time.perf_counter() - start)
    assert total[0] == 3 * len(values)
    phases = team.phase_ms()
    assert set(phases) == {"fill", "add_up"}
    assert min(phases.values()) > 0
    assert sum(phases.values()) < whole_ms


def test_phases_are_numbered_in_the_order_of_the_source():
    _, names = with_ticks(two_phases)
    assert names == ["start", "fill", "add_up"]


def test_a_timed_step_computes_the_same_logits_as_any_other(target):
    timed, team = timed_steps(target, CASES)
    plain = StepTimer.of_target(target, CASES)
    for case in CASES:
        logits = [
            timer._decoder.forward(timer._steps[case], timer.cache).clone().numpy()
            for timer in (timed, plain)
        ]
        assert np.array_equal(*logits)
    assert {"head", "qkv", "output", "gate_up", "down", "attend_partition"} <= set(team.phase_ms())


def test_the_table_has_every_group_of_phases_and_adds_up(target):
    records = measure_phases(target, 1, CASES)
    assert [record["phase"] for record in records] == [
        "head",
        "linears",
        "attention",
        "rope, cache write",
        "norms, gate, quantizing",
        "whole step",
    ]
    for column in ("ms, 1 row", "ms, 5 rows"):
        *parts, whole = (record[column] for record in records)
        assert min(parts) > 0
        assert sum(parts) < whole
