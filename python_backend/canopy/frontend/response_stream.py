"""One client of the entry model: inputs as they came, outputs as the vLLM backend names them."""

import json
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import triton_python_backend_utils as pb_utils

from canopy.engine.output import Delta
from canopy.errors import Cancelled, CanopyError, InvalidRequest, Unavailable
from canopy.frontend.request_parser import ClientRequest
from canopy.frontend.response_thread import Outbox

_LOOK_INTERVAL_S = 0.02  # between two looks at a request's cancellation

# Request parameters that belong to the server's protocols, not to sampling.
_PROTOCOL_PARAMETERS = (
    "id",
    "timeout",
    "priority",
    "sequence_id",
    "sequence_start",
    "sequence_end",
)

_TRITON_CODES: dict[type[CanopyError], Callable[[], Any]] = {
    InvalidRequest: lambda: pb_utils.TritonError.INVALID_ARG,
    Unavailable: lambda: pb_utils.TritonError.UNAVAILABLE,
    Cancelled: lambda: pb_utils.TritonError.CANCELLED,
}


class InferenceInputs:
    """Reads the optional inputs of an InferenceRequest."""

    def __init__(self, request: Any) -> None:
        self._request = request

    def text(self, name: str) -> bytes | None:
        """The bytes of a string input, None when it was not sent."""
        value = self._first(name)
        return value if value is None or isinstance(value, bytes) else str(value).encode()

    def flag(self, name: str) -> bool | None:
        """A boolean input, None when it was not sent."""
        value = self._first(name)
        return None if value is None else bool(value)

    def _first(self, name: str) -> Any:
        tensor = pb_utils.get_input_tensor_by_name(self._request, name)
        if tensor is None:
            return None
        values = tensor.as_numpy().reshape(-1)
        if len(values) != 1:
            raise InvalidRequest(f"{name} must hold one element, got {len(values)}")
        return values[0]

    def parameters(self) -> dict[str, Any]:
        """Request parameters without those of the protocol itself."""
        given = json.loads(self._request.parameters() or "{}")
        return {
            name: value
            for name, value in given.items()
            if name not in _PROTOCOL_PARAMETERS and not name.startswith("triton_")
        }

    def client_request(self) -> ClientRequest:
        """Everything the parser wants to know."""
        return ClientRequest(
            text_input=self.text("text_input"),
            messages=self.text("messages"),
            stream=bool(self.flag("stream")),
            exclude_input_in_output=self.flag("exclude_input_in_output"),
            sampling_parameters=self.text("sampling_parameters"),
            request_parameters=self.parameters(),
            timeout_us=int(self._request.timeout()),
        )


class TritonSink:
    """`engine.output.Sink` over a decoupled response sender; what it says goes by an outbox.

    The last piece carries the FINAL flag itself: a cancel between the two can abort the server.
    """

    def __init__(self, request: Any, outbox: Outbox) -> None:
        inputs = InferenceInputs(request)
        self.request_id = request.request_id()
        self.is_cancel_requested = False
        self._outbox = outbox
        self._looked_s = 0.0
        self._sender = request.get_response_sender()
        self._returns = {
            name: bool(inputs.flag(f"return_{name}"))
            for name in ("finish_reason", "num_input_tokens", "num_output_tokens")
        }
        self.num_input_tokens = 0

    def send(self, delta: Delta) -> None:
        """One response; the last one carries the speculation report and FINAL."""
        self._outbox.post(lambda: self._send(delta))

    def _send(self, delta: Delta) -> None:
        tensors = [_string("text_output", delta.text)]
        if self._returns["finish_reason"]:
            tensors.append(_string("finish_reason", str(delta.finish_reason)))
        if self._returns["num_input_tokens"]:
            tensors.append(_count("num_input_tokens", self.num_input_tokens))
        if self._returns["num_output_tokens"]:
            tensors.append(_count("num_output_tokens", delta.num_tokens))
        if delta.report is not None:
            tensors.append(_string("speculation", json.dumps(delta.report)))
        if delta.rounds is not None:
            tensors.append(_string("trace", json.dumps(delta.rounds)))
        response = pb_utils.InferenceResponse(output_tensors=tensors)
        self._respond(response, is_last=delta.is_last)

    def fail(self, error: CanopyError) -> None:
        """The error, and the end."""
        self._outbox.post(lambda: self._fail(error))

    def _fail(self, error: CanopyError) -> None:
        codes = (code() for kind, code in _TRITON_CODES.items() if isinstance(error, kind))
        failure = pb_utils.TritonError(str(error), next(codes, pb_utils.TritonError.INTERNAL))
        self._respond(pb_utils.InferenceResponse(error=failure), is_last=True)

    def is_cancelled(self) -> bool:
        """Cancelled by a control message, or on the wire when that was last looked at."""
        now_s = time.monotonic()
        if not self.is_cancel_requested and now_s - self._looked_s >= _LOOK_INTERVAL_S:
            self._looked_s = now_s
            self._outbox.post(self._look)
        return self.is_cancel_requested

    def _look(self) -> None:
        self.is_cancel_requested |= self._sender.is_cancelled()

    def _respond(self, response: Any, is_last: bool) -> None:
        if is_last:
            self._sender.send(response, flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
        else:
            self._sender.send(response)


def _string(name: str, text: str) -> Any:
    return pb_utils.Tensor(name, np.array([text.encode("utf-8")], np.object_))


def _count(name: str, count: int) -> Any:
    return pb_utils.Tensor(name, np.array([count], np.uint32))
