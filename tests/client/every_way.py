"""One face for the blocking and the asynchronous client, so that one test holds both to it."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from canopy_client import AsyncClient, Chunk, Client, Completion


class Blocking:
    """The calls of `Client`."""

    def __init__(self, url: str, **options: Any) -> None:
        self._make = lambda: Client(url, **options)

    def call(self, method: str, *arguments: Any, **options: Any) -> Any:
        """One method of a fresh client."""
        with self._make() as client:
            return getattr(client, method)(*arguments, **options)

    def stream(self, prompt: str, num_chunks: int = 1 << 30) -> tuple[list[Chunk], Completion]:
        """At most so many chunks, then leave."""
        with self._make() as client, client.stream(prompt) as stream:
            chunks = [chunk for chunk, _ in zip(stream, range(num_chunks), strict=False)]
            return chunks, stream.completion


class Asynchronous:
    """The calls of `AsyncClient`, each on an event loop of its own."""

    def __init__(self, url: str, **options: Any) -> None:
        self._make = lambda: AsyncClient(url, **options)

    def call(self, method: str, *arguments: Any, **options: Any) -> Any:
        """One method of a fresh client."""
        return self._run(lambda client: getattr(client, method)(*arguments, **options))

    def stream(self, prompt: str, num_chunks: int = 1 << 30) -> tuple[list[Chunk], Completion]:
        """At most so many chunks, then leave."""

        async def read(client: AsyncClient) -> tuple[list[Chunk], Completion]:
            chunks: list[Chunk] = []
            async with client.stream(prompt) as stream:
                async for chunk in stream:
                    chunks.append(chunk)
                    if len(chunks) >= num_chunks:
                        break
                return chunks, stream.completion

        return self._run(read)

    def _run(self, use: Callable[[AsyncClient], Awaitable[Any]]) -> Any:
        async def run() -> Any:
            async with self._make() as client:
                return await use(client)

        return asyncio.run(run())


Way = Blocking | Asynchronous
