"""Idle time refines a coarse profile; whoever asks for something comes first."""

from dataclasses import replace

import pytest

from canopy.config import CacheConfig, Deployment, LimitsConfig, TargetConfig, TreeConfig
from canopy.costs.cost_model import CostModel
from canopy.costs.profile import Profile
from canopy.costs.profile_file import ProfileWatch, find_profile, fingerprint, save_profile
from canopy.errors import StageFailed
from canopy.frontend.profile_refiner import ProfileRefiner
from canopy.verifier.construction import make_verifier

VOCABULARY = 257


class Clock:
    """Goes on by 10 ms whenever it is read."""

    def __init__(self) -> None:
        self.now_s = 100.0

    def __call__(self) -> float:
        self.now_s += 0.01
        return self.now_s


@pytest.fixture
def deployment(tiny_folder, tmp_path):
    deployment = Deployment(
        target=TargetConfig(model=str(tiny_folder), dtype="float32", num_threads=1),
        cache=CacheConfig(num_tokens=2048),
        limits=LimitsConfig(max_running=2),
        tree=TreeConfig(profile=str(tmp_path / "profile.json")),
    )
    coarse = Profile(
        fingerprint=fingerprint(deployment),
        cost_model=CostModel((1,), (1, 2), ((1.0, 2.0),)),
        draft_ms=7.0,
        is_coarse=True,
    )
    save_profile(coarse.to_json(), tmp_path / "profile.json")
    return deployment


def refiner_of(deployment, verifier) -> ProfileRefiner:
    refiner = ProfileRefiner.of(deployment, verifier, VOCABULARY)
    assert refiner is not None
    refiner.clock = Clock()
    refiner.after_step(lambda: False)
    refiner.clock.now_s += 2.0
    return refiner


def test_a_coarse_profile_becomes_fine_and_is_taken_up(deployment, monkeypatch):
    monkeypatch.setattr("canopy.costs.profile_file._LOOK_INTERVAL_S", 0.0)
    watch = ProfileWatch(deployment)
    assert watch.changed() is None
    verifier = make_verifier(deployment)
    refiner = refiner_of(deployment, verifier)
    while not refiner.is_done:
        refiner.after_step(lambda: True)
    fine = find_profile(deployment)
    assert (fine.fault, fine.profile.is_coarse, fine.profile.draft_ms) == ("", False, 7.0)
    assert fine.profile.cost_model.sequences == (1, 2)
    assert watch.changed() == fine.profile
    assert watch.changed() is None
    verifier.blocks.check_integrity()
    assert verifier.blocks.num_used == 0
    assert ProfileRefiner.of(deployment, verifier, VOCABULARY) is None


def test_a_request_finds_the_verifier_empty(deployment):
    verifier = make_verifier(deployment)
    refiner = refiner_of(deployment, verifier)
    answers = iter([True] * 9)
    refiner.after_step(lambda: next(answers, False))
    assert verifier.blocks.num_used == 0
    assert not refiner.is_done


def test_nothing_is_measured_right_after_a_request(deployment):
    class Untouched:
        def verify(self, request):
            raise AssertionError

    refiner = ProfileRefiner.of(deployment, Untouched(), VOCABULARY)
    refiner.after_step(lambda: True)  # nor before the first one
    refiner.after_step(lambda: False)
    refiner.after_step(lambda: True)


def test_a_verifier_that_fails_ends_the_refinement_only(deployment, caplog):
    class Broken:
        def verify(self, request):
            raise StageFailed("verifier", "gone")

    refiner = refiner_of(deployment, Broken())
    refiner.after_step(lambda: True)
    assert refiner.is_done
    assert "gone" in caplog.text
    assert find_profile(deployment).profile.is_coarse


def test_whoever_wants_no_measuring_gets_none(deployment):
    tree = replace(deployment.tree, profile_seconds=0.0)
    verifier = make_verifier(deployment)
    assert ProfileRefiner.of(replace(deployment, tree=tree), verifier, VOCABULARY) is None
