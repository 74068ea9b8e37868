"""What the answers of one asynchronous client share: transport, tasks, what the model takes."""

import asyncio
import json
from collections.abc import AsyncIterator, Coroutine, Mapping
from typing import Any

from canopy_client.request import Request, control, supported_by
from canopy_client.transports.base import (
    CONTROL_TIMEOUT_S,
    GIVE_UP_S,
    Connection,
)
from canopy_client.transports.factory import open_async_transport
from canopy_client.types import Chunk, ModelInfo


class AsyncSession:
    """One model over one transport, on one event loop."""

    def __init__(self, connection: Connection, model: str) -> None:
        self.transport = open_async_transport(connection)
        self.model = model
        self._info: ModelInfo | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    async def model_info(self) -> ModelInfo:
        """The model's own description, asked for once. Raises a ClientError."""
        if self._info is None:
            self._info = await self.transport.model(self.model)
        return self._info

    async def chunks(self, request: Request, timeout_s: float) -> AsyncIterator[Chunk]:
        """Send one request, fitted to what the model takes. Raises a ClientError."""
        fitting = supported_by(request, await self.model_info())
        async for chunk in self.transport.stream(fitting, timeout_s):
            yield chunk

    async def cancel(self, request_id: str) -> bool:
        """Tell the service to give a request up; whether it takes such messages.

        Asked again when the service knows no such request: it may be on its way. Raises a
        ClientError.
        """
        if "control" not in (await self.model_info()).inputs:
            return False
        for _ in range(2):
            reply = await self.control({"op": "cancel", "request_id": request_id})
            if reply.get("cancelled"):
                break
            await asyncio.sleep(0.05)
        return True

    async def describe(self) -> dict[str, Any]:
        """What the service says of itself; empty where it takes no such messages.

        Raises a ClientError.
        """
        if "control" not in (await self.model_info()).inputs:
            return {}
        return await self.control({"op": "describe"})

    def spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """A task that outlives whoever asked for it, at the longest until `close`."""
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def close(self) -> None:
        """Let what is under way end, for some seconds, and close the transport."""
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=CONTROL_TIMEOUT_S)
        for task in list(self._tasks):
            task.cancel()
        await self.transport.close()

    async def control(self, operation: Mapping[str, Any]) -> dict[str, Any]:
        """What the service answers to a message to itself. Raises a ClientError."""
        request = control(self.model, operation)
        chunks = self.transport.stream(request, GIVE_UP_S)
        return json.loads("".join([chunk.text async for chunk in chunks]))
