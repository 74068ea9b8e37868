"""Ranks that share nothing but a network: two network namespaces joined by one cable."""

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from ranks import HERE, is_running, within

from canopy.models.decoder import load_decoder

ADDRESSES = ("10.213.7.1", "10.213.7.2")
PORT = 29517
HANG_S = 4.0


def ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True, capture_output=True, timeout=20)


@pytest.fixture
def machines() -> Iterator[tuple[str, str]]:
    """Names of two namespaces that see each other and nothing else."""
    if os.geteuid() != 0 or not shutil.which("ip"):
        pytest.skip("network namespaces need root and iproute2")
    names = (f"canopy-{os.getpid()}-a", f"canopy-{os.getpid()}-b")
    made: list[str] = []
    try:
        for name in names:
            try:
                ip("netns", "add", name)
            except subprocess.CalledProcessError as error:
                pytest.skip(f"no network namespace can be made here: {error.stderr!r}")
            made.append(name)
        ip(
            "link",
            "add",
            "cable",
            "netns",
            names[0],
            "type",
            "veth",
            "peer",
            "cable",
            "netns",
            names[1],
        )
        for name, address in zip(names, ADDRESSES, strict=True):
            ip("-n", name, "address", "add", f"{address}/24", "dev", "cable")
            ip("-n", name, "link", "set", "cable", "up")
            ip("-n", name, "link", "set", "lo", "up")
        yield names
    finally:
        for name in made:
            ip("netns", "delete", name)


def start(machine: str, *command: str) -> subprocess.Popen[str]:
    environment = {name: v for name, v in os.environ.items() if not name.endswith("_IFNAME")}
    return subprocess.Popen(
        ["ip", "netns", "exec", machine, sys.executable, *command],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=environment | {"OMP_NUM_THREADS": "1"},
        text=True,
    )


def start_rank_0(machine: str, folder: Path) -> subprocess.Popen[str]:
    target = {
        "model": str(folder),
        "dtype": "float32",
        "num_threads": 1,
        "tensor_parallel_size": 2,
        "rendezvous": f"{ADDRESSES[0]}:{PORT}",
        "worker_timeout_s": HANG_S,
    }
    return start(machine, str(HERE / "lonely_rank_0.py"), json.dumps(target))


def test_ranks_join_over_the_network_again_and_again_until_it_is_cut(machines, tiny_folder):
    from lonely_rank_0 import scores_of

    expected = scores_of(load_decoder(tiny_folder, "float32", "cpu"))
    joining = ["-c", "from canopy.cli import main; main()", "worker"]
    joining += ["--rendezvous", f"{ADDRESSES[0]}:{PORT}", "--rank", "1", "--world-size", "2"]
    worker = start(machines[1], *joining)
    try:
        for cut in (False, True):
            with start_rank_0(machines[0], tiny_folder) as rank_0:
                scores = json.loads(rank_0.stdout.readline())
                assert scores == pytest.approx(expected, abs=1e-4)
                if cut:
                    ip("-n", machines[0], "link", "set", "cable", "down")
                    said = json.loads(rank_0.stdout.readline())
                    assert "hangs" in said
                rank_0.kill()
        assert is_running(worker.pid)
    finally:
        worker.send_signal(signal.SIGTERM)
        worker.communicate(timeout=10)


def test_stopping_a_worker_leaves_nothing_behind(tiny_folder):
    command = [sys.executable, "-c", "from canopy.cli import main; main()", "worker"]
    command += ["--rendezvous", "127.0.0.1:9", "--rank", "1", "--world-size", "2"]
    worker = subprocess.Popen(command, stderr=subprocess.PIPE)
    children = Path(f"/proc/{worker.pid}/task/{worker.pid}/children")
    assert within(20, lambda: children.read_text().strip())
    life = int(children.read_text().split()[0])
    worker.terminate()
    worker.communicate(timeout=10)
    assert within(5, lambda: not is_running(life))
