"""`canopy serve` knows what trees cost on this machine before it starts."""

import json
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
from test_process import read_until

from canopy.config import (
    CacheConfig,
    Deployment,
    DrafterConfig,
    LimitsConfig,
    TargetConfig,
    TreeConfig,
)
from canopy.server.profile_at_start import profile_seconds
from canopy.server.runtime import with_free_ports, write_deployment

CANOPY = Path(sys.executable).with_name("canopy")


@pytest.fixture
def deployment(tiny_folder, tmp_path):
    return Deployment(
        target=TargetConfig(model=str(tiny_folder), dtype="float32", num_threads=1),
        drafter=DrafterConfig(ngrams=""),
        cache=CacheConfig(num_tokens=4096),
        limits=LimitsConfig(max_running=2),
        tree=TreeConfig(profile=str(tmp_path / "profile.json"), profile_seconds=1.0),
    )


@contextmanager
def serving(deployment: Deployment, folder: Path) -> Iterator[subprocess.Popen[str]]:
    write_deployment(with_free_ports(deployment), folder / "d.toml")
    command = [CANOPY, "serve", "--config", folder / "d.toml"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        yield process
        process.kill()


def fingerprint(deployment: Deployment) -> dict[str, str]:
    return json.loads(Path(deployment.tree.profile).read_text())["fingerprint"]


def measured_if_outdated(deployment: Deployment, folder: Path) -> str:
    """What `serve` runs before it starts a server."""
    write_deployment(deployment, folder / "d.toml")
    options = ["--if-outdated", "--seconds", "1", "--config", folder / "d.toml"]
    command = [CANOPY, "profile", *options]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


@pytest.mark.server
def test_the_first_start_measures_and_then_serves(deployment, tmp_path):
    with serving(deployment, tmp_path) as process:
        assert "there is no profile" in read_until(process, "Measuring")
        read_until(process, "Ready")
        process.terminate()
        assert process.wait(timeout=30) == 0
    assert fingerprint(deployment)["dtype"] == "float32"


def test_a_profile_that_fits_is_kept_and_another_replaced(deployment, tmp_path):
    assert "there is no profile" in measured_if_outdated(deployment, tmp_path)
    first = Path(deployment.tree.profile).read_bytes()
    assert measured_if_outdated(deployment, tmp_path) == ""
    assert Path(deployment.tree.profile).read_bytes() == first
    changed = replace(deployment, target=replace(deployment.target, num_threads=2))
    assert "another threads" in measured_if_outdated(changed, tmp_path)
    assert fingerprint(changed)["threads"] == "2"


def test_sigterm_while_it_measures_leaves_nothing_behind(deployment, tmp_path):
    patient = replace(deployment, tree=replace(deployment.tree, profile_seconds=600.0))
    with serving(patient, tmp_path) as process:
        read_until(process, "Measuring")
        (child,) = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=10) != 0
        deadline = time.monotonic() + 5
        while Path(f"/proc/{child}").exists() and time.monotonic() < deadline:
            time.sleep(0.05)
        assert not Path(f"/proc/{child}").exists()
    assert not Path(deployment.tree.profile).exists()


def test_nothing_is_measured_where_it_is_not_wanted(deployment):
    unwanted = replace(deployment.tree, profile_seconds=0.0)
    assert profile_seconds(deployment) == 1.0
    assert profile_seconds(replace(deployment, tree=unwanted)) == 0.0
    assert profile_seconds(replace(deployment, drafter=DrafterConfig(source="none"))) == 0.0
