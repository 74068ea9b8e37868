"""Folders that cannot be written: what is prepared is served, the rest is said in one line."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from numba import config as numba_config
from test_process import read_until

import canopy_kernels  # noqa: F401 - chooses Numba's directory
from canopy.config import CacheConfig, Deployment, DrafterConfig, LimitsConfig, TargetConfig
from canopy.server.runtime import with_free_ports, write_deployment
from canopy_client import Client

CANOPY = Path(sys.executable).with_name("canopy")
READ_ONLY = 'mount --bind "$0" "$0" && mount -o remount,bind,ro "$0" && exec "$@"'


def with_read_only(folder: Path, *command: object) -> list[str]:
    """The command, for which nothing in `folder` can be written, whoever runs it."""
    return ["unshare", "-rm", "sh", "-c", READ_ONLY, str(folder), *map(str, command)]


def mounts_work() -> bool:
    folder = Path(__file__).parent
    try:
        done = subprocess.run(with_read_only(folder, "true"), capture_output=True, check=False)
    except OSError:
        return False
    return done.returncode == 0


needs_mounts = pytest.mark.skipif(not mounts_work(), reason="no mount namespaces here")


def environment(home: Path) -> dict[str, str]:
    """Of a user with that home, but for compiled functions, which take long to be made again."""
    compiled = Path(numba_config.CACHE_DIR).parent
    own = {"HOME": home, "CANOPY_HOME": home / "canopy", "NUMBA_CACHE_DIR": compiled}
    own["TMPDIR"] = home.parent
    return {**os.environ, **{name: str(folder) for name, folder in own.items()}}


@pytest.mark.parametrize("command", [["fetch-model"], ["profile", "--seconds", "1"]])
def test_a_home_that_cannot_be_written_is_named_in_one_line(tmp_path, command):
    (tmp_path / "canopy").write_text("a file where a folder should be")
    done = subprocess.run(
        [CANOPY, *command], env=environment(tmp_path), capture_output=True, text=True, check=False
    )
    assert done.returncode == 1
    told = [line for line in done.stderr.splitlines() if line]  # a progress bar leaves an empty one
    lines = [line for line in told if "compiled code is kept" not in line]
    assert len(lines) == 1
    assert lines[0].startswith("canopy: ")
    assert str(tmp_path / "canopy") in lines[0]


@needs_mounts
@pytest.mark.server
def test_a_prepared_model_on_a_read_only_volume_is_served(tiny_folder, tmp_path):
    home = tmp_path / "home"
    (home / "canopy").mkdir(parents=True)
    deployment = with_free_ports(
        Deployment(
            target=TargetConfig(model=str(tiny_folder), dtype="float32", num_threads=1),
            drafter=DrafterConfig(ngrams=""),
            cache=CacheConfig(num_tokens=4096),
            limits=LimitsConfig(max_running=2),
        )
    )
    write_deployment(deployment, tmp_path / "d.toml")
    command = with_read_only(home, CANOPY, "serve", "--config", tmp_path / "d.toml")
    options = {"env": environment(home), "text": True, "start_new_session": True}
    with subprocess.Popen(command, stdout=subprocess.PIPE, **options) as process:
        try:
            read_until(process, "Ready")
            with Client(f"127.0.0.1:{deployment.server.grpc_port}") as client:
                assert client.generate("Hello", max_tokens=4).num_output_tokens == 4
        finally:
            process.send_signal(signal.SIGTERM)
            process.wait(timeout=60)
    assert list((home / "canopy").iterdir()) == []
