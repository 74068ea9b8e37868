"""HTTP with server-sent events, asynchronous."""

from collections.abc import AsyncIterator
from typing import Any

import httpx2

from canopy_client.request import Request
from canopy_client.transports.base import Connection
from canopy_client.transports.http import settings
from canopy_client.transports.http_wire import (
    EventReader,
    checked,
    error_of,
    path_of,
    read_index,
    read_model,
    to_body,
    to_client_error,
)
from canopy_client.types import Chunk, ModelInfo, ModelState


class AsyncHttpTransport:
    """`transport.AsyncTransport` over one pool of connections."""

    def __init__(self, connection: Connection) -> None:
        self._client = httpx2.AsyncClient(**settings(connection))

    async def stream(self, request: Request, timeout_s: float) -> AsyncIterator[Chunk]:
        """The chunks of one answer."""
        path, body = path_of(request), to_body(request)
        reader = EventReader(request)
        try:
            async with self._client.stream("POST", path, json=body, timeout=timeout_s) as response:
                if response.status_code != 200:
                    raise error_of(response.status_code, await response.aread())
                async for data in response.aiter_bytes():
                    for chunk in reader.feed(data):
                        yield chunk
        except httpx2.TransportError as error:
            raise to_client_error(error) from error
        last = reader.end()
        if last is not None:
            yield last

    async def server_version(self) -> str:
        """The Triton server's version."""
        return (await self._ask("GET", "/v2"))["version"]

    async def model(self, name: str) -> ModelInfo:
        """One model's description."""
        return read_model(await self._ask("GET", f"/v2/models/{name}"))

    async def models(self) -> list[ModelState]:
        """Every model that the server knows of."""
        return read_index(await self._ask("POST", "/v2/repository/index"))

    async def close(self) -> None:
        """Close the connections; what still streams is cut off."""
        await self._client.aclose()

    async def _ask(self, method: str, path: str) -> Any:
        try:
            response = await self._client.request(method, path)
        except httpx2.TransportError as error:
            raise to_client_error(error) from error
        return checked(response.status_code, response.content)
