"""What a client of the entry model sent, read from an InferenceRequest."""

import json
from typing import Any

import triton_python_backend_utils as pb_utils

from canopy.errors import InvalidRequest
from canopy.frontend.client_request import ClientRequest
from canopy.frontend.neutral import PROTOCOL_PARAMETERS, without_neutral
from canopy.frontend.sampling_options import parse_timeout_us

OPTIONAL_OUTPUTS = (
    "finish_reason",
    "num_input_tokens",
    "num_output_tokens",
    "token_ids",
    "cumulative_logprob",
    "logprobs",
)


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

    def request_id(self) -> str:
        """As the client sent it. Raises InvalidRequest."""
        try:
            return self._request.request_id()
        except UnicodeDecodeError as error:
            raise InvalidRequest(f"the request id is not valid UTF-8: {error}") from error

    def returned_outputs(self) -> frozenset[str]:
        """Optional outputs that the client asks for. Raises InvalidRequest."""
        return frozenset(name for name in OPTIONAL_OUTPUTS if self.flag(f"return_{name}"))

    def client_request(self) -> ClientRequest:
        """Everything the parser wants to know. Raises InvalidRequest."""
        parameters = self._parameters()
        timeout_us = parse_timeout_us(parameters.pop("timeout", self._request.timeout()))
        return ClientRequest(
            text_input=self.text("text_input"),
            messages=self.text("messages"),
            stream=bool(self.flag("stream")),
            exclude_input_in_output=self.flag("exclude_input_in_output"),
            sampling_parameters=self.text("sampling_parameters"),
            request_parameters=parameters,
            timeout_us=timeout_us,
            needs_logprobs=bool(self.flag("return_logprobs"))
            or bool(self.flag("return_cumulative_logprob")),
        )

    def _parameters(self) -> dict[str, Any]:
        """Request parameters without those that the protocol uses up."""
        try:
            given = json.loads(self._request.parameters() or "{}")
        except UnicodeDecodeError as error:
            raise InvalidRequest(f"a parameter is not valid UTF-8: {error}") from error
        except ValueError as error:
            raise InvalidRequest(f"the parameters cannot be read: {error}") from error
        own = {n: v for n, v in given.items() if n != "id" and not n.startswith("triton_")}
        return without_neutral(own, PROTOCOL_PARAMETERS)
