"""A real server with a toy model: it starts, is watched, heals, and leaves nothing behind."""

import os
import signal
import socket
import subprocess
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path

import pytest
from image_layout import image_folder
from toy_service import write_toy_repository
from waiting import wait_until

from canopy.config import Deployment
from canopy.errors import CannotStart
from canopy.server.probe import Health, ask_for_health, ask_for_token, read_metrics
from canopy.server.process import ServerProcess
from canopy.server.runtime import (
    require_free_ports,
    shared_memory_prefix,
    with_free_ports,
    write_deployment,
)
from canopy_client import Client

pytestmark = pytest.mark.server

SUPERVISE = """
import sys
from pathlib import Path
from rich.console import Console
from canopy.deployment_file import load_deployment
from canopy.errors import CannotStart
from canopy.server.process import ServerProcess
from canopy.server.supervisor import Supervisor

deployment, run, repository = sys.argv[1:]
process = ServerProcess(load_deployment(deployment), Path(run), Path(repository))
Supervisor(process, Console(), interval_s=0.2).run()
"""


def group_members(group: int) -> set[int]:
    """Live processes of a process group."""
    members = set()
    for entry in Path("/proc").iterdir():
        try:
            if entry.name.isdigit() and os.getpgid(int(entry.name)) == group:
                state = (entry / "stat").read_text().rpartition(")")[2].split()[0]
                members |= {int(entry.name)} if state != "Z" else set()
        except (ProcessLookupError, FileNotFoundError):
            continue
    return members


def regions(server) -> list[Path]:
    return list(Path("/dev/shm").glob(f"{shared_memory_prefix(server)}*"))


def assert_nothing_is_left(server, group: int) -> None:
    assert group_members(group) == set()
    assert regions(server) == []
    require_free_ports(server)


def test_a_server_answers_drains_and_leaves_nothing(tmp_path):
    deployment = with_free_ports(Deployment())
    repository = write_toy_repository(tmp_path / "models")
    with ServerProcess(deployment, tmp_path / "run", repository) as process:
        group = process.pid
        assert ask_for_health(process.server, 5).health is Health.ALIVE
        assert len(group_members(group)) >= 2
        assert all(process.owns(pid) for pid in group_members(group))
        assert regions(process.server)
        with pytest.raises(CannotStart, match="http_port"):
            ServerProcess(deployment, tmp_path / "second", repository).start()
        assert process.drain()
        assert ask_for_health(process.server, 5).health is Health.ALIVE
        refusal = ask_for_token(process.server, 5)
        assert refusal.health is Health.ALIVE
        assert "[unavailable]" in refusal.reason
    assert_nothing_is_left(deployment.server, group)


def has_ipv6() -> bool:
    try:
        socket.create_server(("::1", 0), family=socket.AF_INET6).close()
    except OSError:
        return False
    return True


IPV6 = pytest.param("::1", marks=pytest.mark.skipif(not has_ipv6(), reason="no IPv6 here"))


@pytest.mark.parametrize("host", ["localhost", IPV6])
def test_a_server_is_reached_by_any_host_and_past_a_proxy(tmp_path, monkeypatch, host):
    for name in ("http_proxy", "HTTP_PROXY", "grpc_proxy", "https_proxy", "all_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:1")
    for name in ("no_proxy", "NO_PROXY", "no_grpc_proxy"):
        monkeypatch.delenv(name, raising=False)
    deployment = Deployment()
    deployment = replace(deployment, server=replace(deployment.server, host=host))
    repository = write_toy_repository(tmp_path / "models")
    with ServerProcess(with_free_ports(deployment), tmp_path / "run", repository) as process:
        assert read_metrics(process.server)
        for url in (process.grpc_url, process.http_url):
            with Client(url) as client:
                assert client.health().server_version


def test_a_server_of_ones_own_serves(tmp_path):
    deployment = with_free_ports(Deployment())
    folder = image_folder(tmp_path / "tritonserver")
    deployment = replace(deployment, server=replace(deployment.server, folder=str(folder)))
    repository = write_toy_repository(tmp_path / "models")
    with ServerProcess(deployment, tmp_path / "run", repository) as process:
        assert Path(f"/proc/{process.pid}/cmdline").read_text().startswith(str(folder))
        assert ask_for_health(process.server, 5).health is Health.ALIVE


def test_a_model_that_cannot_load_is_reported_with_the_end_of_the_log(tmp_path):
    model = (
        "class TritonPythonModel:\n    def initialize(self, args): raise ValueError('no luck')\n"
    )
    repository = write_toy_repository(tmp_path / "models", model)
    process = ServerProcess(with_free_ports(Deployment()), tmp_path / "run", repository)
    with pytest.raises(CannotStart, match="no luck"), process:
        pass
    assert regions(process.server) == []


@pytest.fixture
def supervised(tmp_path):
    """A supervisor in a process of its own, as `canopy serve` runs it."""
    deployment = with_free_ports(Deployment())
    write_deployment(deployment, tmp_path / "d.toml")
    repository = write_toy_repository(tmp_path / "models")
    command = [sys.executable, "-c", SUPERVISE, tmp_path / "d.toml", tmp_path / "run", repository]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as supervisor:
        yield supervisor, deployment.server
        supervisor.kill()


def read_until(supervisor, text: str) -> str:
    for line in supervisor.stdout:
        if text in line:
            return line
    raise AssertionError(f"{text!r} was not printed")


def server_group(supervisor) -> int:
    children = Path(f"/proc/{supervisor.pid}/task/{supervisor.pid}/children").read_text().split()
    return int(children[0])


def kill_stub(group: int) -> None:
    for pid in group_members(group) - {group}:
        os.kill(pid, signal.SIGKILL)


def test_a_dead_model_process_is_noticed_and_the_server_replaced(supervised):
    supervisor, server = supervised
    read_until(supervisor, "Ready")
    first = server_group(supervisor)
    kill_stub(first)
    read_until(supervisor, "The server failed")
    read_until(supervisor, "Ready")
    second = server_group(supervisor)
    assert second != first
    assert group_members(first) == set()
    assert ask_for_health(server, 5).health is Health.ALIVE
    supervisor.terminate()
    assert supervisor.wait(timeout=30) == 0
    assert_nothing_is_left(server, second)


def test_sigterm_lets_a_running_request_finish(supervised):
    supervisor, server = supervised
    read_until(supervisor, "Ready")
    answers = []

    def ask() -> None:
        with Client(f"{server.host}:{server.grpc_port}") as client:
            answers.append(client.generate(" ".join(["word"] * 60)))

    client = threading.Thread(target=ask)
    client.start()
    with Client(f"{server.host}:{server.grpc_port}") as observer:
        assert wait_until(lambda: observer.health().num_running == 1)
    supervisor.terminate()  # before the first token
    client.join()
    assert answers[0].num_output_tokens == 60
    assert supervisor.wait(timeout=30) == 0


def test_a_killed_supervisor_takes_its_server_along(supervised):
    supervisor, _ = supervised
    read_until(supervisor, "Ready")
    group = server_group(supervisor)
    supervisor.kill()
    deadline = time.monotonic() + 20
    while group_members(group) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert group_members(group) == set()
