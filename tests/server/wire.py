"""Speaking to the server as any client would: tritonclient's gRPC stream, and plain HTTP."""

import json
import queue
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import tritonclient.grpc as grpc

FLAGS = {
    "stream": True,
    "return_finish_reason": True,
    "return_num_input_tokens": True,
    "return_num_output_tokens": True,
}
FLAG_NAMES = (
    *FLAGS,
    "exclude_input_in_output",
    "return_logprobs",
    "return_cumulative_logprob",
    "return_token_ids",
)

# Request id, outputs, error text, whether it is the last one.
Response = tuple[str, dict[str, Any], str | None, bool]


@dataclass
class Answer:
    """All responses of one request."""

    pieces: list[str] = field(default_factory=list)
    outputs: list[dict[str, Any]] = field(default_factory=list)
    error: str | None = None

    @property
    def text(self) -> str:
        return "".join(self.pieces)

    @property
    def report(self) -> dict[str, Any]:
        return json.loads(self.outputs[-1]["speculation"])

    @property
    def num_tokens(self) -> int:
        return sum(int(output["num_output_tokens"]) for output in self.outputs)


def string_input(name: str, value: str | bytes) -> grpc.InferInput:
    tensor = grpc.InferInput(name, [1], "BYTES")
    data = value if isinstance(value, bytes) else value.encode()
    tensor.set_data_from_numpy(np.array([data], np.object_))
    return tensor


def flag_input(name: str, value: bool) -> grpc.InferInput:
    tensor = grpc.InferInput(name, [1], "BOOL")
    tensor.set_data_from_numpy(np.array([value], np.bool_))
    return tensor


class Stream:
    """One gRPC stream. Several requests may be in flight on it; answers come by request id."""

    def __init__(self, url: str) -> None:
        self._client = grpc.InferenceServerClient(url)
        self._responses: queue.Queue = queue.Queue()
        self._client.start_stream(lambda result, error: self._responses.put((result, error)))

    def send(self, text: str | bytes | None, request_id: str = "", **options: Any) -> None:
        """`options` beside the flags below go into sampling_parameters."""
        flags = FLAGS | {name: options.pop(name) for name in FLAG_NAMES if name in options}
        inputs = [flag_input(name, value) for name, value in flags.items()]
        if text is not None:
            inputs.append(string_input("text_input", text))
        for name in ("messages", "control"):
            if name in options:
                inputs.append(string_input(name, options.pop(name)))
        if options:
            inputs.append(string_input("sampling_parameters", json.dumps(options)))
        self._client.async_stream_infer(
            "canopy", inputs, request_id=request_id, enable_empty_final_response=True
        )

    def responses(self, timeout_s: float = 60.0) -> Iterator[Response]:
        """Responses of all requests of the stream, as they come."""
        while True:
            result, error = self._responses.get(timeout=timeout_s)
            if error is not None:
                yield "", {}, error.message(), True
                continue
            response = result.get_response()
            outputs = {o.name: _value(result.as_numpy(o.name)) for o in response.outputs}
            is_last = response.parameters["triton_final_response"].bool_param
            yield response.id, outputs, None, is_last

    def collect(self, count: int = 1, timeout_s: float = 60.0) -> dict[str, Answer]:
        """Read until `count` requests have ended."""
        answers: dict[str, Answer] = {}
        for request_id, outputs, error, is_last in self.responses(timeout_s):
            answer = answers.setdefault(request_id, Answer())
            answer.error = error or answer.error
            if outputs:
                answer.outputs.append(outputs)
                answer.pieces.append(outputs["text_output"])
            count -= is_last
            if count == 0:
                return answers
        raise AssertionError("the stream ended early")

    def close(self, cancel: bool = False) -> None:
        self._client.stop_stream(cancel_requests=cancel)
        self._client.close()

    def __enter__(self) -> "Stream":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _value(array: np.ndarray) -> Any:
    value = array.reshape(-1)[0]
    return value.decode("utf-8") if isinstance(value, bytes) else value.item()


def ask(url: str, text: str | bytes | None, **options: Any) -> Answer:
    """One request on a stream of its own."""
    with Stream(url) as stream:
        stream.send(text, request_id="only", **options)
        answers = stream.collect()
    return next(iter(answers.values()))


def post(url: str, body: dict[str, Any] | bytes) -> tuple[int, str]:
    """Status and body of a JSON POST."""
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    request = urllib.request.Request(url, data, {"Content-Type": "application/json"})
    try:
        with urllib.request.urlopen(request, timeout=60) as response:
            return response.status, response.read().decode("utf-8")
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode("utf-8", "replace")


def metrics(url: str) -> dict[str, float]:
    """The custom metrics, labels included in the name."""
    with urllib.request.urlopen(url, timeout=10) as response:
        lines = response.read().decode().splitlines()
    pairs = (line.rsplit(" ", 1) for line in lines if line.startswith("canopy_"))
    return {name: float(value) for name, value in pairs}
