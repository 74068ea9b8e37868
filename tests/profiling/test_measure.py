"""A profile of a tiny model: every cell measured, a usable cost model, and nothing left behind."""

import json
import math

import pytest

from canopy.config import CacheConfig, Deployment, LimitsConfig, TargetConfig, TreeConfig
from canopy.costs.profile_file import fingerprint, load_profile
from canopy.engine.step_times import StepGrid, StepSampler, StepTimes
from canopy.profiling import measurement as measure
from canopy.profiling.profile_writer import write_plot, write_profile


@pytest.fixture(scope="module")
def deployment(tiny_folder, tmp_path_factory):
    return Deployment(
        target=TargetConfig(model=str(tiny_folder), dtype="float32", num_threads=1),
        cache=CacheConfig(num_tokens=4096),
        limits=LimitsConfig(max_running=4),
        tree=TreeConfig(profile=str(tmp_path_factory.mktemp("profile") / "new" / "profile.json")),
    )


@pytest.fixture(scope="module")
def measured(deployment):
    """The measurement, the phases that it went through, and its verifier."""
    phases, verifiers, make = {}, [], measure.make_verifier
    patch = pytest.MonkeyPatch()
    patch.setattr(measure, "make_verifier", lambda d: verifiers.append(make(d)) or verifiers[0])
    patch.setattr(measure, "_STEPS_SHARE", 0.005)  # the other share ends with its prompts
    measurement = measure.measure_profile(deployment, 600.0, phases.__setitem__)
    patch.undo()
    return measurement, phases, verifiers[0]


def test_a_grid_holds_what_a_step_can_be():
    grid = StepGrid.up_to(6)
    assert grid.sequences == (1, 2, 4)
    assert (4, 2) not in grid.cells
    assert {(1, 1), (1, 48), (4, 4), (4, 192)} <= set(grid.cells)
    assert (1, 64) not in grid.cells


class _Steady:
    """A driver whose steps take as long as they have tokens, in ms."""

    def prepare(self, num_sequences: int) -> bool:
        return True

    def step_ms(self, num_sequences: int, num_tokens: int) -> float:
        return float(num_tokens)


def test_coarse_cells_are_measured_first_and_are_enough_for_a_profile():
    grid = StepGrid.up_to(32)
    sampler = StepSampler(grid)
    assert grid.coarse.sequences == (1, 8, 32)
    assert len(grid.coarse.cells) < len(grid.cells) / 4
    for _ in grid.coarse.cells:
        assert not sampler.is_usable
        sampler.measure(_Steady())
    assert sampler.is_usable
    assert sampler.times.grid == grid.coarse
    assert sampler.times.cost_model().predict_one_ms(16, 1) == 16.0


def test_with_time_every_cell_is_measured_beyond_its_warm_up():
    grid = StepGrid.up_to(4)
    sampler = StepSampler(grid)
    while sampler.share < 1.0:
        sampler.measure(_Steady())
    times = sampler.times
    assert (times.grid, times.grid.is_coarse) == (grid, False)
    assert set(times.samples) == set(grid.cells)
    assert all(len(samples) >= 2 for samples in times.samples.values())


def test_the_cells_of_a_profile_are_measured(measured):
    profile, steps = measured[0].profile, measured[0].steps
    assert set(steps.samples) == set(steps.grid.cells)
    assert all(math.isfinite(ms) and ms > 0.0 for s in steps.samples.values() for ms in s)
    assert profile.is_coarse == steps.grid.is_coarse
    assert profile.cost_model == steps.cost_model()


def test_the_spread_tells_a_calm_machine_from_a_busy_one():
    calm = StepTimes(StepGrid((1,), (1, 2)), {(1, 1): [9.9, 10.0, 10.1], (1, 2): [12.0, 12.1]})
    busy = StepTimes(
        calm.grid, {cell: [ms, 2 * ms, 4 * ms] for cell, (ms, *_) in calm.samples.items()}
    )
    assert calm.spread < 0.02
    assert busy.spread == pytest.approx(0.75)


def test_nothing_is_left_in_the_verifier(measured):
    blocks = measured[2].blocks
    blocks.check_integrity()
    assert blocks.num_used == 0
    assert blocks.num_free == blocks.num_blocks


def test_the_drafters_nodes_are_weighed_too(measured):
    profile, phases = measured[0].profile, measured[1]
    assert set(phases) == {"step times", "drafted nodes"}
    assert profile.draft_ms > 0.0
    assert "greedy" in profile.calibrations  # at random, this model repeats itself too rarely


def test_the_file_is_what_the_stages_read(measured, deployment, tmp_path):
    measurement = measured[0]
    path = tmp_path.joinpath(deployment.tree.profile)
    write_profile(measurement, path)
    assert load_profile(deployment) == measurement.profile
    document = json.loads(path.read_text(encoding="utf-8"))
    assert document["fingerprint"] == fingerprint(deployment)
    assert document["measured_ms"]["p50"][-1][0] is None  # four sequences have no single token
    assert list(path.parent.iterdir()) == [path]


def test_the_plot_shows_every_number_of_sequences(measured, tmp_path):
    pytest.importorskip("matplotlib")
    path = tmp_path / "steps.svg"
    write_plot(measured[0], path)
    assert path.read_text(encoding="utf-8").lstrip().startswith("<?xml")
