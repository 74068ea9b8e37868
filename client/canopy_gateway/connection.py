"""One HTTP/1.1 connection, with limits of time and size that its parser does not set.

httptools refuses what is ambiguous, such as Transfer-Encoding beside Content-Length. Here is added:
a head that does not arrive, a head that is too large, a client that stops reading, more connections
than the process can hold, and the offer of another protocol, which would cost a request its body.
"""

import asyncio
import re
import socket
from collections.abc import Callable
from typing import Any

from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol

from canopy_gateway.errors import APIError
from canopy_gateway.settings import GatewaySettings

MAX_HEAD_BYTES = 64 << 10
MAX_HEADERS = 128
SEND_BUFFER_BYTES = 128 << 10  # the kernel's, which doubles it
_UPGRADE = re.compile(rb"\r\nupgrade:[^\r\n]*(?=\r\n)", re.IGNORECASE)


class LimitedConnection(HttpToolsProtocol):
    """uvicorn's protocol over httptools, for one connection.

    Nothing is written ahead of the client: while it does not read, one piece waits here, and the
    kernel holds its own buffer.
    """

    def __init__(
        self, settings: GatewaySettings, is_draining: Callable[[], bool], **server: Any
    ) -> None:
        super().__init__(**server)
        self._settings = settings
        self._is_draining = is_draining
        self._head_timer: asyncio.TimerHandle | None = None
        self._write_timer: asyncio.TimerHandle | None = None
        self._reads_head = True
        self._num_head_bytes = 0
        self._refusal = APIError(400, "this is no valid HTTP request", "invalid_http")

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Refuse at once what is one connection too many."""
        super().connection_made(transport)
        transport.set_write_buffer_limits(high=0)
        own = transport.get_extra_info("socket")
        own.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SEND_BUFFER_BYTES)
        if len(self.connections) > self._settings.max_connections:
            self._refuse(APIError(503, "too many connections: retry later", "unavailable"))
        else:
            self._await_head()

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget the timers."""
        super().connection_lost(exc)
        self._end_head_wait()
        if self._write_timer is not None:
            self._write_timer.cancel()

    def data_received(self, data: bytes) -> None:
        """Count what belongs to a head, and hide the offer of another protocol in it."""
        if self._reads_head:
            self._await_head()
            head, end, rest = data.partition(b"\r\n\r\n")
            self._num_head_bytes += len(head)
            data = _UPGRADE.sub(b"", head + end[:2]) + end[2:] + rest
        super().data_received(data)
        if self._reads_head and self._num_head_bytes > MAX_HEAD_BYTES:
            self._refuse(_too_large())

    def on_message_begin(self) -> None:
        """The first byte of a request."""
        super().on_message_begin()
        self._await_head()

    def on_header(self, name: bytes, value: bytes) -> None:
        """One header. Raises APIError, which ends in `send_400_response`."""
        super().on_header(name, value)
        if len(self.headers) > MAX_HEADERS or self._num_head_bytes > MAX_HEAD_BYTES:
            self._refusal = _too_large()
            raise self._refusal

    def on_headers_complete(self) -> None:
        """The request can begin. Raises APIError, which ends in `send_400_response`."""
        self._end_head_wait()
        self._reads_head, self._num_head_bytes = False, 0
        num_hosts = sum(name == b"host" for name, _ in self.headers)
        if num_hosts != 1 and self.parser.get_http_version() == "1.1":
            raise self._refusal
        super().on_headers_complete()
        if self._is_draining():
            self.cycle.keep_alive = False

    def on_message_complete(self) -> None:
        """The body is whole: what comes next is a head."""
        super().on_message_complete()
        self._reads_head = True

    def send_400_response(self, msg: str) -> None:
        """Whatever the parser did not like, in the shape of every other error."""
        self._refuse(self._refusal)

    def pause_writing(self) -> None:
        """The client does not read as fast as it is written to."""
        super().pause_writing()
        timeout_s = self._settings.write_timeout_s
        self._write_timer = self.loop.call_later(timeout_s, self.transport.abort)

    def resume_writing(self) -> None:
        """It has read everything."""
        super().resume_writing()
        if self._write_timer is not None:
            self._write_timer.cancel()

    @property
    def _is_answering(self) -> bool:
        return self.cycle is not None and not self.cycle.response_complete

    def _await_head(self) -> None:
        if self._head_timer is None:
            timeout_s = self._settings.head_timeout_s
            self._head_timer = self.loop.call_later(timeout_s, self._give_up)

    def _end_head_wait(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None

    def _give_up(self) -> None:
        self._head_timer = None
        if self._is_answering:  # a request behind the one that is answered has time
            self._await_head()
        elif self._num_head_bytes:
            self._refuse(APIError(408, "the request did not arrive in time", "timeout"))
        else:
            self.transport.close()

    def _refuse(self, refusal: APIError) -> None:
        """Answer and close; where an answer is under way, it is cut off."""
        if not self.transport.is_closing() and not self._is_answering:
            response = refusal.response()
            lines = [STATUS_LINE[refusal.status], b"connection: close\r\n"]
            lines += [name + b": " + value + b"\r\n" for name, value in response.raw_headers]
            self.transport.write(b"".join([*lines, b"\r\n", bytes(response.body)]))
        self.transport.close()


def _too_large() -> APIError:
    limits = f"{MAX_HEADERS} headers or {MAX_HEAD_BYTES} bytes of them"
    return APIError(431, f"more than {limits}", "head_too_large")
