"""What the answers of one blocking client share: the transport and what the model takes."""

import json
import time
from collections.abc import Mapping
from typing import Any

from canopy_client.request import Request, control, supported_by
from canopy_client.transports.base import GIVE_UP_S, Call, Connection
from canopy_client.transports.factory import open_transport
from canopy_client.types import ModelInfo


class Session:
    """One model over one transport; safe to share among threads."""

    def __init__(self, connection: Connection, model: str) -> None:
        self.transport = open_transport(connection)
        self.model = model
        self._info: ModelInfo | None = None

    def model_info(self) -> ModelInfo:
        """The model's own description, asked for once. Raises a ClientError."""
        if self._info is None:
            self._info = self.transport.model(self.model)
        return self._info

    def open_call(self, request: Request, timeout_s: float) -> Call:
        """Send one request, fitted to what the model takes. Raises a ClientError."""
        return self.transport.stream(supported_by(request, self.model_info()), timeout_s)

    def cancel(self, request_id: str) -> bool:
        """Tell the service to give a request up; whether it takes such messages.

        Asked again when the service knows no such request: it may be on its way. Raises a
        ClientError.
        """
        if "control" not in self.model_info().inputs:
            return False
        for _ in range(2):
            if self.control({"op": "cancel", "request_id": request_id}).get("cancelled"):
                break
            time.sleep(0.05)
        return True

    def describe(self) -> dict[str, Any]:
        """What the service says of itself; empty where it takes no such messages.

        Raises a ClientError.
        """
        if "control" not in self.model_info().inputs:
            return {}
        return self.control({"op": "describe"})

    def control(self, operation: Mapping[str, Any]) -> dict[str, Any]:
        """What the service answers to a message to itself. Raises a ClientError."""
        request = control(self.model, operation)
        chunks = self.transport.stream(request, GIVE_UP_S)
        return json.loads("".join(chunk.text for chunk in chunks))
