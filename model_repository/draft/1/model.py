"""Proposes trees; owns the drafter and its context cache."""

from typing import Any

from canopy.deployment_file import deployment_of_this_server
from canopy.drafter.stage import make_drafter
from canopy.protocol.messages import DraftRequest
from canopy.protocol.triton_io import serve_stage


class TritonPythonModel:
    """A plain stage: one message in, one message out."""

    def initialize(self, args: dict[str, Any]) -> None:
        """Load what the stage owns."""
        self._drafter = make_drafter(deployment_of_this_server())

    def execute(self, requests: list[Any]) -> list[Any]:
        """Answer each message."""
        return serve_stage(requests, DraftRequest, self._drafter.draft)
