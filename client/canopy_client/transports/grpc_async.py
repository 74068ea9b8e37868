"""gRPC streaming, asynchronous: one stream per request, half-closed and read to its end."""

from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import grpc
from tritonclient.grpc import service_pb2, service_pb2_grpc

from canopy_client.address import parse_address
from canopy_client.request import Request
from canopy_client.transports.base import CONTROL_TIMEOUT_S, Connection
from canopy_client.transports.grpc import CHANNEL_OPTIONS, credentials, metadata
from canopy_client.transports.grpc_wire import (
    StreamReader,
    read_index,
    read_model,
    to_client_error,
    to_message,
)
from canopy_client.types import Chunk, ModelInfo, ModelState


class AsyncGrpcTransport:
    """`transport.AsyncTransport` over one channel of the running event loop."""

    def __init__(self, connection: Connection) -> None:
        address = parse_address(connection.url)
        self._metadata = tuple(metadata(connection))
        if address.is_encrypted:
            secrets = credentials(connection.tls)
            self._channel = grpc.aio.secure_channel(address.target, secrets, CHANNEL_OPTIONS)
        else:
            self._channel = grpc.aio.insecure_channel(address.target, CHANNEL_OPTIONS)
        self._stub = service_pb2_grpc.GRPCInferenceServiceStub(self._channel)

    async def stream(self, request: Request, timeout_s: float) -> AsyncIterator[Chunk]:
        """The chunks of one answer."""

        async def messages() -> AsyncIterator[service_pb2.ModelInferRequest]:
            yield to_message(request)

        call = self._stub.ModelStreamInfer(messages(), timeout=timeout_s, metadata=self._metadata)
        reader = StreamReader()
        try:
            async for response in call:
                for chunk in reader.feed(response):
                    yield chunk
        except grpc.RpcError as error:
            raise to_client_error(error) from error
        reader.end()

    async def server_version(self) -> str:
        """The Triton server's version."""
        wanted = service_pb2.ServerMetadataRequest()
        return (await self._ask(self._stub.ServerMetadata, wanted)).version

    async def model(self, name: str) -> ModelInfo:
        """One model's description."""
        wanted = service_pb2.ModelMetadataRequest(name=name)
        return read_model(await self._ask(self._stub.ModelMetadata, wanted))

    async def models(self) -> list[ModelState]:
        """Every model that the server knows of."""
        wanted = service_pb2.RepositoryIndexRequest()
        return read_index(await self._ask(self._stub.RepositoryIndex, wanted))

    async def close(self) -> None:
        """Close the channel; what still streams is cut off."""
        await self._channel.close()

    async def _ask(self, method: Callable[..., Awaitable[Any]], message: Any) -> Any:
        try:
            return await method(message, timeout=CONTROL_TIMEOUT_S, metadata=self._metadata)
        except grpc.RpcError as error:
            raise to_client_error(error) from error
