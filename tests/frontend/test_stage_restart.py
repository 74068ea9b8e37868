"""A stage is loaded again only when its old process has let go of its memory."""

import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import grpc
import pytest
from tritonclient.grpc import service_pb2, service_pb2_grpc
from waiting import wait_until

from canopy.config import ServerConfig
from canopy.errors import StageFailed
from canopy.frontend.stage_restart import restart_stage

END_S = 0.3


class Repository(service_pb2_grpc.GRPCInferenceServiceServicer):
    """Answers an unload at once, as the server does, and ends the old process a while later."""

    def __init__(self, old: subprocess.Popen) -> None:
        self._old = old
        self.exit_code_at_load: int | None = None

    def RepositoryModelUnload(self, request, context):  # noqa: N802
        threading.Timer(END_S, self._end).start()
        return service_pb2.RepositoryModelUnloadResponse()

    def _end(self) -> None:
        self._old.kill()
        self._old.wait()

    def RepositoryModelLoad(self, request, context):  # noqa: N802
        self.exit_code_at_load = self._old.poll()
        return service_pb2.RepositoryModelLoadResponse()


@pytest.fixture
def old() -> Iterator[subprocess.Popen]:
    """A process whose command names its model, as that of a stub does."""
    sleep = "import time; time.sleep(60)"
    process = subprocess.Popen([sys.executable, "-c", sleep, "/repository/verifier/1/model.py"])
    yield process
    process.kill()
    process.wait()


class HangingRepository(Repository):
    """The old process does not end by itself."""

    def _end(self) -> None:
        self._old.wait()


def restart(repository: Repository) -> None:
    server = grpc.server(ThreadPoolExecutor(1))
    service_pb2_grpc.add_GRPCInferenceServiceServicer_to_server(repository, server)
    config = ServerConfig(grpc_port=server.add_insecure_port("127.0.0.1:0"))
    server.start()
    restart_stage(config, "verifier")
    server.stop(None)


def test_the_old_process_is_gone_before_the_new_one_loads(old, monkeypatch):
    monkeypatch.setattr(os, "getppid", os.getpid)  # the test stands for the server
    repository = Repository(old)
    restart(repository)
    assert repository.exit_code_at_load is not None


def test_an_old_process_that_hangs_is_killed(old, monkeypatch):
    monkeypatch.setattr(os, "getppid", os.getpid)
    monkeypatch.setattr("canopy.frontend.stage_restart._GONE_TIMEOUT_S", 0.1)
    restart(HangingRepository(old))
    assert wait_until(lambda: old.poll() is not None)


def test_a_server_that_is_gone_is_reported():
    with pytest.raises(StageFailed, match="cannot be loaded again"):
        restart_stage(ServerConfig(grpc_port=1), "verifier")
