"""gRPC streaming, blocking: one stream per request, half-closed after it and read to its end."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import grpc
from tritonclient.grpc import service_pb2, service_pb2_grpc

from canopy_client.address import parse_address
from canopy_client.request import Request
from canopy_client.transports.base import CONTROL_TIMEOUT_S, Connection
from canopy_client.transports.grpc_wire import (
    StreamReader,
    read_index,
    read_model,
    to_client_error,
    to_message,
)
from canopy_client.types import Chunk, ModelInfo, ModelState, Tls

MAX_MESSAGE_BYTES = (1 << 31) - 1
CHANNEL_OPTIONS = [
    ("grpc.max_send_message_length", MAX_MESSAGE_BYTES),
    ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
    ("grpc.enable_http_proxy", 0),  # as over HTTP: a proxy of the environment knows no such server
    # After an outage the library would wait up to two minutes before it tries again.
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 1000),
    ("grpc.min_reconnect_backoff_ms", 1000),  # also how long one attempt to connect may take
]


def credentials(tls: Tls) -> grpc.ChannelCredentials:
    """Raises OSError when a file cannot be read."""
    files = (tls.ca_file, tls.key_file, tls.certificate_file)
    return grpc.ssl_channel_credentials(*(Path(f).read_bytes() if f else None for f in files))


def metadata(connection: Connection) -> list[tuple[str, str]]:
    """Headers as gRPC wants them."""
    return [(name.lower(), value) for name, value in connection.headers.items()]


class GrpcCall:
    """One streamed call."""

    def __init__(self, call: Any) -> None:
        self._call = call

    def __iter__(self) -> Iterator[Chunk]:
        reader = StreamReader()
        try:
            for response in self._call:
                yield from reader.feed(response)
        except grpc.RpcError as error:
            raise to_client_error(error) from error
        reader.end()

    def abort(self) -> None:
        """Cancel the call: the last resort, since near the end of a stream it harms the server."""
        self._call.cancel()


class GrpcTransport:
    """`transport.Transport` over one channel."""

    def __init__(self, connection: Connection) -> None:
        address = parse_address(connection.url)
        self._metadata = metadata(connection)
        if address.is_encrypted:
            secrets = credentials(connection.tls)
            self._channel = grpc.secure_channel(address.target, secrets, CHANNEL_OPTIONS)
        else:
            self._channel = grpc.insecure_channel(address.target, CHANNEL_OPTIONS)
        self._stub = service_pb2_grpc.GRPCInferenceServiceStub(self._channel)

    def stream(self, request: Request, timeout_s: float) -> GrpcCall:
        """Start one request."""
        messages = iter([to_message(request)])
        call = self._stub.ModelStreamInfer(messages, timeout=timeout_s, metadata=self._metadata)
        return GrpcCall(call)

    def server_version(self) -> str:
        """The Triton server's version."""
        return self._ask(self._stub.ServerMetadata, service_pb2.ServerMetadataRequest()).version

    def model(self, name: str) -> ModelInfo:
        """One model's description."""
        wanted = service_pb2.ModelMetadataRequest(name=name)
        return read_model(self._ask(self._stub.ModelMetadata, wanted))

    def models(self) -> list[ModelState]:
        """Every model that the server knows of."""
        wanted = service_pb2.RepositoryIndexRequest()
        return read_index(self._ask(self._stub.RepositoryIndex, wanted))

    def close(self) -> None:
        """Close the channel; what still streams is cut off."""
        self._channel.close()

    def _ask(self, method: Callable[..., Any], message: Any) -> Any:
        try:
            return method(message, timeout=CONTROL_TIMEOUT_S, metadata=self._metadata)
        except grpc.RpcError as error:
            raise to_client_error(error) from error
