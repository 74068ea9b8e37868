"""The streams behind one request: admitted together, read together, given up together."""

import asyncio
import hashlib
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass

from canopy_client import AsyncTextStream, Chunk, ClientError, Completion
from canopy_gateway.errors import Refusal


class Admission:
    """How many answers may be under way. Refuses at once: waiting is the client's business."""

    def __init__(self, limit: int, retry_after_s: int) -> None:
        self.limit = limit
        self.num_running = 0
        self._retry_after_s = retry_after_s

    def enter(self, count: int) -> Callable[[], None]:
        """Take `count` places; the result gives them back. Raises Refusal (429)."""
        if self.num_running + count > self.limit:
            raise Refusal(
                429,
                f"{self.num_running} answers are under way, at most {self.limit} at once: "
                "retry later",
                "too_many_requests",
                headers={"Retry-After": str(self._retry_after_s)},
            )
        self.num_running += count

        def leave() -> None:
            self.num_running -= count

        return leave


def choice_seed(seed: int | None, index: int) -> int | None:
    """The seed of one of several answers: the first has the request's own.

    Hashed rather than counted up, so that neighbouring seeds share no answer.
    """
    if seed is None:
        return None
    seed %= 1 << 64
    if index == 0:
        return seed
    digest = hashlib.blake2b(seed.to_bytes(8, "little") + index.to_bytes(8, "little"))
    return int.from_bytes(digest.digest()[:8], "little")


@dataclass(frozen=True)
class Piece:
    """A chunk of the choice `index`."""

    index: int
    chunk: Chunk


class Answers:
    """Streams that were opened; iterate once, and close in any case."""

    def __init__(self, streams: Sequence[AsyncTextStream]) -> None:
        self._streams = streams
        self._stack = AsyncExitStack()
        self._events: asyncio.Queue[Piece | ClientError] = asyncio.Queue()
        self._num_open = len(streams)
        self._first: Piece | None = None

    @classmethod
    async def open(
        cls, start: Sequence[Callable[[], AsyncTextStream]], admission: Admission
    ) -> "Answers":
        """Start every stream and wait for the first chunk of any.

        So an error of the server still finds its HTTP status. Raises Refusal and ClientError.
        """
        leave = admission.enter(len(start))
        answers = cls([])
        answers._stack.callback(leave)
        try:
            answers._streams = [await answers._stack.enter_async_context(s()) for s in start]
            answers._num_open = len(start)
            answers._read()
            answers._first = await answers._next()
        except BaseException:
            await answers.close()
            raise
        return answers

    async def pieces(self) -> AsyncIterator[Piece]:
        """Chunks of all choices as they come. Raises the first ClientError."""
        if self._first is not None:
            yield self._first
        while self._num_open:
            yield await self._next()

    @property
    def completions(self) -> list[Completion]:
        """The answers so far, in the order of the choices."""
        return [stream.completion for stream in self._streams]

    async def close(self) -> None:
        """Give up what has not ended, and the places."""
        await self._stack.aclose()

    def _read(self) -> None:
        for index, stream in enumerate(self._streams):
            task = asyncio.ensure_future(self._forward(index, stream))
            self._stack.callback(task.cancel)

    async def _forward(self, index: int, stream: AsyncTextStream) -> None:
        try:
            async for chunk in stream:
                self._events.put_nowait(Piece(index, chunk))
        except ClientError as error:
            self._events.put_nowait(error)

    async def _next(self) -> Piece:
        event = await self._events.get()
        if isinstance(event, ClientError):
            raise event
        self._num_open -= event.chunk.is_last
        return event
