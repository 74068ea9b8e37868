"""JSON bodies and server-sent events of the server's generate endpoints, to and from values."""

import json
from collections.abc import Iterator
from typing import Any

import httpx2

from canopy_client.answer import chunk_of, cut_short
from canopy_client.errors import (
    ClientError,
    ServerFailure,
    TimedOut,
    Unavailable,
    UnknownModel,
    error_from_text,
)
from canopy_client.request import Request
from canopy_client.types import Chunk, ModelInfo, ModelState


def path_of(request: Request) -> str:
    """Where a request is posted."""
    return f"/v2/models/{request.model}/generate_stream"


def to_body(request: Request) -> dict[str, Any]:
    """The JSON object to post; `id` becomes the request's id."""
    return {**request.inputs, "id": request.id}


class EventReader:
    """Turns the bytes of one event stream into chunks.

    The server marks no event as the last one: it is the one with a finish reason where one was
    asked for, and otherwise whatever came before the connection closed. Lines end at "\\n" alone:
    the text inside may hold other characters that Unicode calls line ends.
    """

    def __init__(self, request: Request) -> None:
        self._expects_reason = request.expects_reason
        self._has_ended = False
        self._rest = b""

    def feed(self, data: bytes) -> Iterator[Chunk]:
        """The chunks that are whole now. Raises the error that an event carries."""
        *lines, self._rest = (self._rest + data).split(b"\n")
        for line in lines:
            if line.startswith(b"data:"):
                yield self._read(line.removeprefix(b"data:"))

    def _read(self, event: bytes) -> Chunk:
        outputs = _loads(event)
        if "error" in outputs:
            raise error_from_text(outputs["error"])
        self._has_ended = outputs.get("finish_reason", "None") != "None"
        return chunk_of(outputs, self._has_ended)

    def end(self) -> Chunk | None:
        """The connection closed. Raises ServerFailure when the answer is not whole."""
        if self._has_ended:
            return None
        if self._expects_reason:
            raise cut_short()
        return chunk_of({}, is_last=True)


def checked(status: int, body: bytes) -> Any:
    """The JSON of a reply. Raises the error that its status and text stand for."""
    if status == 200:
        return _loads(body)
    raise error_of(status, body)


def error_of(status: int, body: bytes) -> ClientError:
    """The error of a refused request; the status of a model's own error is always 400.

    The body is JSON, or one event of a stream that holds it.
    """
    text = body.decode("utf-8", "replace").removeprefix("data:").strip()
    try:
        text = str(json.loads(text)["error"])
    except (ValueError, KeyError, TypeError):
        text = text[:500] or f"HTTP status {status}"
    error = error_from_text(text)
    if type(error) is not ServerFailure:
        return error
    if status == 404:
        return UnknownModel(text)
    return Unavailable(text) if status in (429, 502, 503, 504) else error


def _loads(text: str | bytes) -> Any:
    try:
        return json.loads(text)
    except ValueError as error:
        raise ServerFailure(f"the server's answer is not valid JSON: {error}") from error


def to_client_error(error: httpx2.TransportError) -> ClientError:
    """The error of a connection."""
    if isinstance(error, httpx2.ConnectError | httpx2.ConnectTimeout):
        return Unavailable(f"the server cannot be reached: {error}")
    if isinstance(error, httpx2.TimeoutException):
        return TimedOut("no end of the answer within the client's timeout")
    return ServerFailure(f"the connection broke: {error!r}")


def read_model(metadata: dict[str, Any]) -> ModelInfo:
    """A model's description."""
    return ModelInfo(
        name=metadata["name"],
        versions=tuple(metadata["versions"]),
        platform=metadata["platform"],
        inputs=tuple(tensor["name"] for tensor in metadata["inputs"]),
        outputs=tuple(tensor["name"] for tensor in metadata["outputs"]),
    )


def read_index(index: list[dict[str, str]]) -> list[ModelState]:
    """The server's list of models."""
    return [
        ModelState(m["name"], m.get("version", ""), m.get("state", ""), m.get("reason", ""))
        for m in index
    ]
