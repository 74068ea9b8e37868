"""The target model; owns its KV cache and acceptance."""

from typing import Any

from canopy.deployment_file import deployment_of_this_server
from canopy.protocol.messages import VerifyRequest
from canopy.protocol.triton_io import serve_stage
from canopy.verifier.construction import make_verifier


class TritonPythonModel:
    """A plain stage: one message in, one message out."""

    def initialize(self, args: dict[str, Any]) -> None:
        """Load what the stage owns."""
        self._verifier = make_verifier(deployment_of_this_server())

    def execute(self, requests: list[Any]) -> list[Any]:
        """Answer each message."""
        return serve_stage(requests, VerifyRequest, self._verifier.verify)
