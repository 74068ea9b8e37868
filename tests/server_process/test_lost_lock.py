"""A server that loses a lock of its shared memory while it starts is launched once more."""

import pytest

from canopy.config import Deployment
from canopy.errors import CannotStart
from canopy.server import process as server_process
from canopy.server.probe import Health, ProbeResult
from canopy.server.process import ServerProcess
from canopy.server.runtime import with_free_ports

LOST = "terminate called after throwing an instance of 'boost::interprocess::lock_exception'"


@pytest.fixture
def launched(tmp_path, monkeypatch):
    """A server whose launches run shell scripts in turn, the last one again and again."""

    def launch(*scripts: str) -> tuple[ServerProcess, list[str]]:
        left, run = list(scripts), []

        def command(*_args: object) -> list[str]:
            run.append(left.pop(0) if len(left) > 1 else left[0])
            return ["sh", "-c", run[-1]]

        def probe(*_args: object) -> ProbeResult:
            health = Health.ALIVE if run[-1].startswith("sleep") else Health.BROKEN
            return ProbeResult(health, "")

        monkeypatch.setattr(server_process, "server_command", command)
        monkeypatch.setattr(server_process, "make_backend_directory", lambda *_: tmp_path)
        monkeypatch.setattr(server_process, "ask_for_token", probe)
        return ServerProcess(with_free_ports(Deployment()), tmp_path / "run", tmp_path), run

    return launch


def test_it_is_launched_once_more(launched):
    server, run = launched(f'echo "{LOST}"; exit 1', "sleep 60")
    with server:
        assert server.is_running
        assert len(run) == 2
    assert not server.is_running


@pytest.mark.parametrize(("line", "num_launches"), [(LOST, 2), ("no such model", 1)])
def test_it_is_not_launched_for_ever_nor_for_another_reason(launched, line, num_launches):
    server, run = launched(f'echo "{line}"; exit 1')
    with pytest.raises(CannotStart, match="stopped while starting"), server:
        pass
    assert len(run) == num_launches
