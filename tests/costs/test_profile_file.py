"""Profiles are found, and believed only for the model and machine that they were measured on."""

import json
import logging

import pytest

from canopy.config import CacheConfig, Deployment, TargetConfig, TreeConfig
from canopy.costs.cost_model import CostModel
from canopy.costs.profile import Profile
from canopy.costs.profile_file import find_profile, fingerprint, load_profile, profile_path
from canopy.model_store.manifest import with_checksum
from canopy.tree.survival import Calibration

MEASURED = CostModel((1, 2), (1, 2, 8), ((3.0, 4.0, 9.0), (3.0, 5.0, 9.0)))


@pytest.fixture
def deployment(tiny_folder, tmp_path):
    profile = str(tmp_path / "profile.json")
    return Deployment(target=TargetConfig(model=str(tiny_folder)), tree=TreeConfig(profile=profile))


def write(deployment, **changes):
    profile = Profile(
        fingerprint=fingerprint(deployment),
        cost_model=MEASURED,
        calibrations={"greedy": Calibration(0.8, -0.2)},
        sibling_rates=(0.5, 0.1),
    )
    profile_path(deployment).write_text(json.dumps(profile.to_json() | changes))
    return profile


def test_a_profile_of_this_model_and_machine_is_used(deployment):
    written = write(deployment)
    assert load_profile(deployment) == written
    assert find_profile(deployment).fault == ""


def test_without_one_the_default_is_used_with_a_warning(deployment, caplog):
    with caplog.at_level(logging.WARNING):
        assert load_profile(deployment) == Profile()
    assert "canopy profile" in caplog.text


@pytest.mark.parametrize("key", ["model", "dtype", "machine", "cores", "threads", "drafter"])
def test_a_profile_of_something_else_is_noticed(deployment, caplog, key):
    write(deployment, fingerprint=fingerprint(deployment) | {key: "another"})
    with caplog.at_level(logging.WARNING):
        assert load_profile(deployment) == Profile()
    assert f"another {key}" in caplog.text
    assert f"another {key}" in find_profile(deployment).fault


def test_a_profile_of_other_kernels_serves_until_it_is_measured_again(deployment, caplog):
    written = write(deployment, fingerprint=fingerprint(deployment) | {"kernels": "older"})
    with caplog.at_level(logging.WARNING):
        assert load_profile(deployment).cost_model == written.cost_model
    assert "outdated" in caplog.text
    assert "another kernels" in find_profile(deployment).fault


@pytest.mark.parametrize(
    "change",
    [
        {"cost_model": None},
        {"sibling_rates": [0.1, 0.5]},
        {"sibling_rates": []},
        {"draft_ms": -1.0},
        {"draft_ms": "x"},
        {"calibrations": {"greedy": {"slope": -1.0, "intercept": 0.0}}},
        {"fingerprint": 3},
    ],
)
def test_a_damaged_profile_is_the_default(deployment, change):
    write(deployment, **change)
    assert load_profile(deployment) == Profile()
    profile_path(deployment).write_bytes(b"\xff{")
    assert load_profile(deployment) == Profile()


def test_on_a_gpu_other_ways_to_compute_a_step_are_another_device(monkeypatch, tiny_folder):
    monkeypatch.setattr("torch.cuda.get_device_name", lambda: "card")
    on_gpu = {"model": str(tiny_folder), "device": "cuda", "dtype": "bfloat16"}
    ways: list[dict] = [{}, {"max_graph_rows": 0}, {"batch_invariant": True}]
    targets = [TargetConfig(**on_gpu, **way) for way in ways]
    cache = CacheConfig(block_size=64)
    names = {fingerprint(Deployment(target=t, cache=cache))["device"] for t in targets}
    assert len(names) == 3
    assert all(name.startswith("card") for name in names)


def test_a_profile_that_was_changed_after_it_was_measured_is_measured_again(deployment):
    written = write(deployment)
    path = profile_path(deployment)
    sealed = with_checksum(json.loads(path.read_text()))
    path.write_text(json.dumps(sealed))
    assert find_profile(deployment).profile == written
    path.write_text(json.dumps(sealed | {"sibling_rates": [0.4, 0.1]}))
    assert "checksum" in find_profile(deployment).fault
