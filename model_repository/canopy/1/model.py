"""The entry model: text in, token stream out."""

from typing import Any

from canopy.deployment_file import deployment_of_this_server
from canopy.frontend.service import EntryService


class TritonPythonModel:
    """Inputs and outputs: config.pbtxt. Any number of responses, the last one FINAL."""

    def initialize(self, args: dict[str, Any]) -> None:
        """Start the engine loop; it waits for the first request."""
        self._service = EntryService(deployment_of_this_server())

    def execute(self, requests: list[Any]) -> None:
        """Check and enqueue; the engine's thread answers."""
        for request in requests:
            self._service.handle(request)

    def finalize(self) -> None:
        """End the engine loop."""
        self._service.close()
