"""The blocking client: one gRPC channel, one call per request, safe to share among threads.

A call is half-closed after its request and read to its end; a cancel goes to the service as a
message. A gRPC cancel close to the end of a stream can abort the server, so it is the last resort.
"""

import json
import queue
import threading
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self, Unpack

import grpc
from tritonclient.grpc import service_pb2, service_pb2_grpc

from canopy_client.errors import (
    Cancelled,
    ClientError,
    ServerFailure,
    TimedOut,
    Unavailable,
    error_from_text,
)
from canopy_client.wire import (
    Chunk,
    Completion,
    SamplingOptions,
    control_request,
    generation_request,
    join_chunks,
    read_chunk,
)

MAX_MESSAGE_BYTES = (1 << 31) - 1
CONTROL_TIMEOUT_S = 10.0

Messages = str | Sequence[Mapping[str, Any]]


@dataclass(frozen=True)
class Health:
    """What a one-token request found."""

    server_version: str
    latency_ms: float


class TextStream:
    """Iterates over the chunks of one answer; `completion` is the whole once it has ended.

    Leaving the `with` block before the end cancels the request.
    """

    def __init__(self, client: "Client", request: service_pb2.ModelInferRequest) -> None:
        self._client = client
        self._request_id = request.id
        self._call = client._call(request)
        self._responses: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._chunks: list[Chunk] = []
        self._has_ended = False
        threading.Thread(target=self._receive, daemon=True).start()

    def __iter__(self) -> Iterator[Chunk]:
        while not self._has_ended:
            chunk = self._next()
            self._chunks.append(chunk)
            yield chunk

    @property
    def completion(self) -> Completion:
        """The answer so far; whole when the iteration has ended."""
        return join_chunks(self._chunks)

    def cancel(self) -> None:
        """Ask the server to give the request up, from any thread; the iteration then ends."""
        if self._has_ended:
            return
        try:
            self._client._cancel(self._request_id)
        except ClientError:
            self._call.cancel()

    def close(self) -> None:
        """Cancel unless the answer has ended, and wait until the server has let it go."""
        self.cancel()
        with suppress(ClientError):
            for _ in self:
                pass

    def _receive(self) -> None:
        """On a thread of its own: a wait inside gRPC that Ctrl-C interrupts breaks the call."""
        try:
            for response in self._call:
                self._responses.put(response)
            self._responses.put(ServerFailure("the stream ended before the answer did"))
        except grpc.RpcError as error:
            self._responses.put(_translated(error))

    def _next(self) -> Chunk:
        """Raises a ClientError, after which the stream has ended."""
        response = self._responses.get()
        try:
            if isinstance(response, ClientError):
                raise response
            if response.error_message:
                raise error_from_text(response.error_message)
            chunk = read_chunk(response.infer_response)
        except ClientError:
            self._has_ended = True
            raise
        self._has_ended = chunk.is_last
        return chunk

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()


class Client:
    """A connection to one server. `timeout_s` bounds every request from its start to its end."""

    def __init__(self, url: str = "127.0.0.1:8001", timeout_s: float = 600.0) -> None:
        sizes = ("grpc.max_send_message_length", "grpc.max_receive_message_length")
        self._channel = grpc.insecure_channel(url, [(name, MAX_MESSAGE_BYTES) for name in sizes])
        self._stub = service_pb2_grpc.GRPCInferenceServiceStub(self._channel)
        self._url = url
        self._timeout_s = timeout_s

    def generate(self, prompt: str, **options: Unpack[SamplingOptions]) -> Completion:
        """Continue `prompt` as it stands. Raises a ClientError."""
        return _read_all(self.stream(prompt, **options))

    def chat(self, messages: Messages, **options: Unpack[SamplingOptions]) -> Completion:
        """Answer a chat (dicts of role and content), or one user message. Raises a ClientError."""
        return _read_all(self.stream_chat(messages, **options))

    def stream(self, prompt: str, **options: Unpack[SamplingOptions]) -> TextStream:
        """Like `generate`, chunk by chunk; errors are raised by the iteration."""
        return TextStream(self, generation_request(prompt, None, options, _new_id()))

    def stream_chat(self, messages: Messages, **options: Unpack[SamplingOptions]) -> TextStream:
        """Like `chat`, chunk by chunk; errors are raised by the iteration."""
        if isinstance(messages, str):
            messages = [{"role": "user", "content": messages}]
        return TextStream(self, generation_request(None, messages, options, _new_id()))

    def health(self) -> Health:
        """Ask for one token: the server's own readiness says nothing about its models.

        Raises Unavailable, or what else came instead of an answer.
        """
        try:
            metadata = self._stub.ServerMetadata(
                service_pb2.ServerMetadataRequest(), timeout=CONTROL_TIMEOUT_S
            )
        except grpc.RpcError as error:
            raise _translated(error) from error
        start = time.perf_counter()
        self.generate("a", max_tokens=1, temperature=0.0, speculation="off")
        return Health(metadata.version, (time.perf_counter() - start) * 1e3)

    def close(self) -> None:
        """Close the connection; what still streams is cut off."""
        self._channel.close()

    def _call(self, request: service_pb2.ModelInferRequest) -> Any:
        return self._stub.ModelStreamInfer(iter([request]), timeout=self._timeout_s)

    def _cancel(self, request_id: str) -> None:
        """Asked again when the service knows no such request: it may be on its way."""
        for _ in range(2):
            reply = self._control({"op": "cancel", "request_id": request_id})
            if reply.get("cancelled"):
                return
            time.sleep(0.05)

    def _control(self, operation: Mapping[str, Any]) -> dict[str, Any]:
        request = control_request(operation)
        text = ""
        try:
            for response in self._stub.ModelStreamInfer(iter([request]), timeout=CONTROL_TIMEOUT_S):
                if response.error_message:
                    raise error_from_text(response.error_message)
                text += read_chunk(response.infer_response).text
        except grpc.RpcError as error:
            raise _translated(error) from error
        return json.loads(text)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()


def _new_id() -> str:
    return uuid.uuid4().hex


def _read_all(stream: TextStream) -> Completion:
    with stream:
        for _ in stream:
            pass
        return stream.completion


def _translated(error: grpc.RpcError) -> ClientError:
    """RpcErrors of a call also carry `code()` and `details()`."""
    code, details = error.code(), str(error.details())
    if code is grpc.StatusCode.DEADLINE_EXCEEDED:
        return TimedOut("no end of the answer within the client's timeout")
    if code is grpc.StatusCode.UNAVAILABLE:
        return Unavailable(f"the server cannot be reached: {details}")
    if code is grpc.StatusCode.CANCELLED:
        return Cancelled(details)
    return ServerFailure(details)
