"""One streamed answer, blocking: a thread receives it, the caller iterates over what came."""

import queue
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from types import TracebackType
from typing import Self

from canopy_client.answer import Answer, RetryableUnavailable
from canopy_client.errors import Cancelled, ClientError, ServerFailure, TimedOut, Unavailable
from canopy_client.request import Request
from canopy_client.session import Session
from canopy_client.transports.base import GIVE_UP_S, Call
from canopy_client.types import Chunk, Completion, Retry


class TextStream:
    """Iterates over the chunks of one answer; `completion` is the whole once it has ended.

    Leaving the `with` block before the end cancels the request.
    """

    def __init__(self, session: Session, request: Request, timeout_s: float, retry: Retry) -> None:
        self._session = session
        self._request = request
        self._retry = retry
        self._timeout_s = timeout_s
        self._deadline_s = time.monotonic() + timeout_s
        self._call: Call | None = None
        self._events: queue.SimpleQueue[Chunk | ClientError] = queue.SimpleQueue()
        self._answer = Answer()
        self._is_cancelled = threading.Event()
        self._receiver = threading.Thread(target=self._receive, daemon=True)
        self._receiver.start()

    def __iter__(self) -> Iterator[Chunk]:
        while not self._answer.has_ended:
            yield self._answer.take(self._next_event())

    @property
    def completion(self) -> Completion:
        """The answer so far; whole when the iteration has ended."""
        return self._answer.completion

    def cancel(self) -> None:
        """Ask the server to give the request up, from any thread; the iteration then ends."""
        if self._answer.has_ended:
            return
        self._is_cancelled.set()
        with suppress(ClientError):
            if self._session.cancel(self._request.id):
                return
        self._abort()

    def close(self) -> None:
        """Cancel unless the answer has ended, and wait until the server has let it go."""
        self.cancel()
        with suppress(ClientError):
            for _ in self:
                pass

    def _give_up(self) -> None:
        """By a message where the service takes one; the answer is then read to its end."""
        self._is_cancelled.set()
        with suppress(ClientError):
            if self._session.cancel(self._request.id):
                self._receiver.join(GIVE_UP_S)
        if self._receiver.is_alive():
            self._abort()

    def _abort(self) -> None:
        if self._call is not None:
            self._call.abort()

    def _next_event(self) -> Chunk | ClientError:
        try:
            return self._events.get(timeout=max(self._deadline_s - time.monotonic(), 0.0))
        except queue.Empty:
            self._give_up()
            return TimedOut(f"no end of the answer within {self._timeout_s:g} s")

    def _receive(self) -> None:
        """On a thread of its own: a wait inside gRPC that Ctrl-C interrupts breaks the call."""
        try:
            for wait_s in self._retry.waits():
                try:
                    return self._attempt()
                except RetryableUnavailable as failure:
                    if self._is_cancelled.wait(wait_s):
                        raise Cancelled("by this client") from failure
            self._attempt()
        except RetryableUnavailable as failure:
            self._events.put(failure.reason)
        except ClientError as error:
            self._events.put(error)
        except Exception as error:  # a stream without an end would hang its reader
            self._events.put(ServerFailure(f"the answer could not be read: {error!r}"))

    def _attempt(self) -> None:
        """One call to its end. Raises RetryableUnavailable where it may be tried again.

        The deadline is kept by the reader, who gives the request up properly; the transport's own
        only bounds how long that may take.
        """
        has_begun = False
        try:
            left_s = max(self._deadline_s - time.monotonic(), 0.001)
            self._call = self._session.open_call(self._request, left_s + 2 * GIVE_UP_S)
            for chunk in self._call:
                has_begun = True
                self._events.put(chunk)
        except Unavailable as error:
            if has_begun:
                raise
            raise RetryableUnavailable(error) from error

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()
