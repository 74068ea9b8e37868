"""Reads accepted requests beside the threads that take them in and that stream.

A prompt of a megabyte takes a second to render and to tokenize. Prompts wait for each other in two
lanes of one thread each, so that short ones never wait for long ones; in a lane they are read in
the order in which they came. The engine's queue bounds how many there are.
"""

import logging
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Protocol

from canopy.engine.output import Delta, Sink
from canopy.engine.request import GenerationRequest
from canopy.engine.request_queue import SHUTTING_DOWN, Reservation
from canopy.errors import Cancelled, CanopyError, InvalidRequest
from canopy.frontend.client_request import ClientRequest

logger = logging.getLogger(__name__)

LONG_BYTES = 16384  # a prompt of so many bytes takes the lane of long ones

Submit = Callable[[GenerationRequest, Sink, Reservation], None]


class Parser(Protocol):
    """`request_parser.RequestParser`, as far as it is needed here."""

    def check_sizes(self, client: ClientRequest) -> None: ...

    def parse(self, client: ClientRequest) -> GenerationRequest: ...


class RequestReader:
    """From the inputs of a request to the engine's queue, or to an error."""

    def __init__(self, parser: Parser, reserve: Callable[[], Reservation], submit: Submit) -> None:
        """reserve, submit: those of the engine."""
        self._parser = parser
        self._reserve = reserve
        self._submit = submit
        self._short_lane = ThreadPoolExecutor(1, "canopy-reader")
        self._long_lane = ThreadPoolExecutor(1, "canopy-long-reader")

    def read(self, client: ClientRequest, sink: Sink) -> None:
        """Have the request read soon; `sink` learns what is wrong with it.

        Raises InvalidRequest for a size that is refused unread, Unavailable without a free place.
        """
        self._parser.check_sizes(client)
        reservation = self._reserve()

        def submit() -> None:
            self._submit(self._parser.parse(client), sink, reservation)

        self._lane(client.num_bytes).submit(self._do, submit, sink, reservation)

    def answer(self, work: Callable[[], Delta], num_bytes: int, sink: Sink) -> None:
        """Have `sink` get what other work on a text of so many bytes results in.

        Raises Unavailable without a free place.
        """
        reservation = self._reserve()
        self._lane(num_bytes).submit(self._do, lambda: sink.send(work()), sink, reservation)

    def close(self) -> None:
        """Return when every request was read or, without its place in the queue, refused."""
        for lane in (self._short_lane, self._long_lane):
            lane.shutdown(wait=True)

    def _lane(self, num_bytes: int) -> ThreadPoolExecutor:
        return self._long_lane if num_bytes >= LONG_BYTES else self._short_lane

    def _do(self, work: Callable[[], None], sink: Sink, reservation: Reservation) -> None:
        try:
            if sink.is_cancelled():
                raise Cancelled("the client cancelled the request")
            if not reservation.is_held:
                raise SHUTTING_DOWN
            work()
        except Exception as error:
            sink.fail(failure_of(error))
        finally:
            reservation.release()


def failure_of(error: Exception) -> CanopyError:
    """What a client hears of an error while its request was read."""
    if isinstance(error, CanopyError):
        return error
    if isinstance(error, RecursionError):
        return InvalidRequest("the request holds JSON that is nested too deeply")
    logger.error("a request could not be read: %s", type(error).__name__)
    return CanopyError(f"the request could not be read: {error!r}")
