"""Selects the tree of every sequence; keeps nothing about one."""

from typing import Any

from canopy.config import deployment_of_this_server
from canopy.messages import BuildRequest
from canopy.stages.building import make_tree_builder
from canopy.triton_io import serve_stage


class TritonPythonModel:
    """A plain stage: one message in, one message out."""

    def initialize(self, args: dict[str, Any]) -> None:
        """Load what the stage owns."""
        self._tree_builder = make_tree_builder(deployment_of_this_server())

    def execute(self, requests: list[Any]) -> list[Any]:
        """Answer each message."""
        return serve_stage(requests, BuildRequest, self._tree_builder.build)
