"""A stage is loaded again only when its old instance has let go of its memory."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import grpc
import pytest
from tritonclient.grpc import service_pb2, service_pb2_grpc

from canopy.config import ServerConfig
from canopy.errors import StageFailed
from canopy.frontend.stage_restart import restart_stage


class Repository(service_pb2_grpc.GRPCInferenceServiceServicer):
    """Answers an unload at once, as the server does, and ends the instance some polls later."""

    def __init__(self) -> None:
        self.state = "READY"
        self.num_polls = 3
        self.state_at_load = ""

    def RepositoryModelUnload(self, request, context):  # noqa: N802
        self.state = "UNLOADING"
        return service_pb2.RepositoryModelUnloadResponse()

    def RepositoryIndex(self, request, context):  # noqa: N802
        self.num_polls -= 1
        if self.state == "UNLOADING" and self.num_polls <= 0:
            self.state = "UNAVAILABLE"
        index = service_pb2.RepositoryIndexResponse()
        index.models.add(name="draft", state="READY")
        index.models.add(name="verifier", state=self.state)
        return index

    def RepositoryModelLoad(self, request, context):  # noqa: N802
        self.state_at_load = self.state
        return service_pb2.RepositoryModelLoadResponse()


@pytest.fixture
def repository() -> Iterator[tuple[Repository, ServerConfig]]:
    servicer = Repository()
    server = grpc.server(ThreadPoolExecutor(1))
    service_pb2_grpc.add_GRPCInferenceServiceServicer_to_server(servicer, server)
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    yield servicer, ServerConfig(grpc_port=port)
    server.stop(None)


def test_the_old_instance_is_gone_before_the_new_one_loads(repository):
    servicer, config = repository
    restart_stage(config, "verifier")
    assert servicer.state_at_load == "UNAVAILABLE"


def test_a_server_that_is_gone_is_reported():
    with pytest.raises(StageFailed, match="cannot be loaded again"):
        restart_stage(ServerConfig(grpc_port=1), "verifier")
