"""One streamed answer, asynchronous: a task receives it, the caller iterates over what came."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import suppress
from types import TracebackType
from typing import Self

from canopy_client.answer import Answer, RetryableUnavailable
from canopy_client.async_session import AsyncSession
from canopy_client.errors import Cancelled, ClientError, ServerFailure, TimedOut, Unavailable
from canopy_client.request import Request
from canopy_client.transports.base import GIVE_UP_S
from canopy_client.types import Chunk, Completion, Retry


class AsyncTextStream:
    """Iterates over the chunks of one answer; `completion` is the whole once it has ended.

    Leaving the `async with` block before the end cancels the request, and so does a cancelled
    task that is inside.
    """

    def __init__(
        self, session: AsyncSession, request: Request, timeout_s: float, retry: Retry
    ) -> None:
        self._session = session
        self._request = request
        self._retry = retry
        self._timeout_s = timeout_s
        self._deadline_s = asyncio.get_running_loop().time() + timeout_s
        self._events: asyncio.Queue[Chunk | ClientError] = asyncio.Queue()
        self._answer = Answer()
        self._receiver = session.spawn(self._receive())

    def __aiter__(self) -> AsyncIterator[Chunk]:
        return self

    async def __anext__(self) -> Chunk:
        if self._answer.has_ended:
            raise StopAsyncIteration
        return self._answer.take(await self._next_event())

    @property
    def completion(self) -> Completion:
        """The answer so far; whole when the iteration has ended."""
        return self._answer.completion

    async def cancel(self) -> None:
        """Ask the server to give the request up; the iteration then ends."""
        if not self._answer.has_ended and not self._receiver.done():
            await asyncio.shield(self._session.spawn(self._give_up()))

    async def close(self) -> None:
        """Cancel unless the answer has ended, and wait until the server has let it go."""
        await self.cancel()
        with suppress(ClientError):
            async for _ in self:
                pass

    async def _give_up(self) -> None:
        """By a message where the service takes one; the answer is then read to its end."""
        is_told = False
        with suppress(ClientError):
            is_told = await self._session.cancel(self._request.id)
        if is_told:
            await asyncio.wait([self._receiver], timeout=GIVE_UP_S)
        self._receiver.cancel()

    async def _next_event(self) -> Chunk | ClientError:
        try:
            async with asyncio.timeout_at(self._deadline_s):
                return await self._events.get()
        except TimeoutError:
            self._session.spawn(self._give_up())
            return TimedOut(f"no end of the answer within {self._timeout_s:g} s")

    async def _receive(self) -> None:
        """Whatever happens, something that ends the answer is in the queue afterwards."""
        try:
            for wait_s in self._retry.waits():
                try:
                    return await self._attempt()
                except RetryableUnavailable:
                    await asyncio.sleep(wait_s)
            await self._attempt()
        except RetryableUnavailable as failure:
            self._events.put_nowait(failure.reason)
        except ClientError as error:
            self._events.put_nowait(error)
        except asyncio.CancelledError:
            self._events.put_nowait(Cancelled("by this client"))
            raise
        except Exception as error:  # a stream without an end would hang its reader
            self._events.put_nowait(ServerFailure(f"the answer could not be read: {error!r}"))

    async def _attempt(self) -> None:
        """One call to its end. Raises RetryableUnavailable where it may be tried again.

        The deadline is kept by the reader, who gives the request up properly; the transport's own
        only bounds how long that may take.
        """
        has_begun = False
        try:
            left_s = max(self._deadline_s - asyncio.get_running_loop().time(), 0.001)
            async for chunk in self._session.chunks(self._request, left_s + 2 * GIVE_UP_S):
                has_begun = True
                self._events.put_nowait(chunk)
        except Unavailable as error:
            if has_begun:
                raise
            raise RetryableUnavailable(error) from error

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.close()
