"""The streams behind one request: admitted together, read together, given up together."""

import asyncio
import hashlib
from collections import Counter
from collections.abc import Callable, Coroutine, Sequence
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass
from typing import Any

from canopy_client import AsyncTextStream, Chunk, ClientError, Completion
from canopy_client.answer import joined
from canopy_gateway.errors import APIError

Start = Callable[[], AsyncTextStream]


class Admission:
    """How many answers may be under way. Refuses at once: waiting is the client's business."""

    def __init__(self, limit: int, limit_per_key: int, retry_after_s: int) -> None:
        self._limit = limit
        self._limit_per_key = limit_per_key
        self._retry_after_s = retry_after_s
        self._num_running: Counter[str] = Counter()  # by API key

    def enter(self, count: int, key: str) -> Callable[[], None]:
        """Take `count` places; the result gives them back. Raises APIError (429)."""
        self._check(self._num_running.total(), count, self._limit, "")
        self._check(self._num_running[key], count, self._limit_per_key, " for this API key")
        self._num_running[key] += count

        def leave() -> None:
            self._num_running[key] -= count

        return leave

    def _check(self, num_running: int, count: int, limit: int, scope: str) -> None:
        if num_running + count > limit:
            raise APIError(
                429,
                f"{num_running} answers are under way{scope}, at most {limit} at once: retry later",
                "too_many_requests",
                headers={"Retry-After": str(self._retry_after_s)},
            )


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
    """What came of the choice `index` since its last piece."""

    index: int
    chunk: Chunk


class Answers:
    """The streams of one request as one; close it in any case."""

    def __init__(self) -> None:
        self._streams: dict[int, AsyncTextStream] = {}  # by choice
        self._stack = AsyncExitStack()
        self._unread: dict[int, Chunk] = {}  # by choice; what came since its last piece
        self._failure: ClientError | None = None
        self._news = asyncio.Event()
        self._num_open = 0
        self._first: Piece | None = None

    @classmethod
    async def open(
        cls,
        starts: Sequence[Start],
        leave: Callable[[], None],
        answers_per_prompt: int = 1,
    ) -> "Answers":
        """Start the streams; `leave` gives their places back.

        Those of one prompt stand together. The first computes the prompt, and the others start
        when something came of it: the server then has the prompt in its cache.
        """
        answers = cls()
        answers._stack.callback(leave)
        answers._num_open = len(starts)
        try:
            for first in range(0, len(starts), answers_per_prompt):
                group = list(enumerate(starts))[first : first + answers_per_prompt]
                await answers._start_group(group)
        except BaseException:
            await answers.close()
            raise
        return answers

    async def _start_group(self, group: list[tuple[int, Start]]) -> None:
        [(index, start), *others] = group
        has_begun = asyncio.Event()
        self._streams[index] = await self._stack.enter_async_context(start())
        self._spawn(self._forward(index, self._streams[index], has_begun))
        for other, start_other in others:
            self._spawn(self._follow(other, start_other, has_begun))

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        """Runs until it ends or the answers are closed."""
        self._stack.push_async_callback(_end, asyncio.ensure_future(work))

    async def _follow(self, index: int, start: Start, has_begun: asyncio.Event) -> None:
        await has_begun.wait()
        async with start() as stream:
            self._streams[index] = stream
            await self._forward(index, stream, has_begun)

    async def wait_for_first(self, timeout_s: float | None) -> None:
        """Return when something came, or after the timeout. Raises ClientError where that came.

        So an error of the server that comes in time still finds its HTTP status.
        """
        self._first = await self.next(timeout_s)

    @property
    def has_ended(self) -> bool:
        """Whether every piece was given out."""
        return self._num_open == 0 and self._first is None

    async def next(self, timeout_s: float | None = None) -> Piece | None:
        """The next piece of any choice, None where none came in time. Raises ClientError."""
        if self._first is not None:
            piece, self._first = self._first, None
            return piece
        try:
            async with asyncio.timeout(timeout_s):
                await self._news.wait()
        except TimeoutError:
            return None
        if not self._unread:
            assert self._failure is not None
            raise self._failure
        index = next(iter(self._unread))
        piece = Piece(index, self._unread.pop(index))
        self._num_open -= piece.chunk.is_last
        self._note()
        return piece

    async def all(self) -> list[Completion]:
        """The whole answers. Raises the first ClientError."""
        while not self.has_ended:
            await self.next()
        return self.completions

    @property
    def completions(self) -> list[Completion]:
        """The answers so far, in the order of the choices."""
        return [self._streams[index].completion for index in sorted(self._streams)]

    async def close(self) -> None:
        """Give up what has not ended, and the places."""
        await self._stack.aclose()

    async def _forward(self, index: int, stream: AsyncTextStream, has_begun: asyncio.Event) -> None:
        """What nobody reads grows into one chunk, so that it takes no more than its text."""
        try:
            async for chunk in stream:
                has_begun.set()
                unread = self._unread.get(index)
                self._unread[index] = chunk if unread is None else joined(unread, chunk)
                self._note()
        except ClientError as error:
            self._failure = self._failure or error
            self._note()

    def _note(self) -> None:
        if self._unread or self._failure is not None:
            self._news.set()
        else:
            self._news.clear()


async def _end(task: asyncio.Future[None]) -> None:
    task.cancel()
    with suppress(asyncio.CancelledError):
        await task
