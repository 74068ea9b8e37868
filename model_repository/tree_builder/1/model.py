"""Selects the tree of every sequence; keeps nothing about one."""

from typing import Any

from canopy.deployment_file import deployment_of_this_server
from canopy.protocol.messages import BuildRequest
from canopy.protocol.triton_io import serve_stage
from canopy.tree_builder.load_monitor import LoadMonitor
from canopy.tree_builder.stage import make_tree_builder


class TritonPythonModel:
    """A plain stage: one message in, one message out."""

    def initialize(self, args: dict[str, Any]) -> None:
        """Load what the stage owns."""
        deployment = deployment_of_this_server()
        self._load = LoadMonitor(deployment.server)
        self._tree_builder = make_tree_builder(deployment, self._load.read)

    def execute(self, requests: list[Any]) -> list[Any]:
        """Answer each message."""
        return serve_stage(requests, BuildRequest, self._tree_builder.build)

    def finalize(self) -> None:
        """Let go of what the stage owns."""
        self._load.close()
