import socket
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager

import pytest
from plain_model import add_plain_model
from relay import relaying
from toy_service import write_toy_repository

from canopy.config import Deployment
from canopy.server.process import ServerProcess
from canopy.server.runtime import with_free_ports
from canopy_client import Client


@pytest.fixture(scope="session")
def toy_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """A real server whose model speaks the wire format and needs no language model."""
    folder = tmp_path_factory.mktemp("toy")
    repository = write_toy_repository(folder / "models")
    add_plain_model(repository)
    deployment = with_free_ports(Deployment())
    with ServerProcess(deployment, folder / "run", repository) as process:
        yield process


@pytest.fixture
def client(toy_server: ServerProcess) -> Iterator[Client]:
    """A client of the toy server."""
    with Client(toy_server.grpc_url, timeout_s=20) as client:
        yield client


@pytest.fixture
def free_port() -> int:
    """A port that nobody listens on."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return listener.getsockname()[1]


@pytest.fixture
def relay() -> Callable[..., AbstractContextManager[None]]:
    """Passes connections of a port on to a server, see `relaying`."""
    return relaying
