"""An answer as server-sent events, ended by [DONE] or by an error event.

While nothing comes, comment lines tell clients and proxies that the connection lives.
"""

import logging
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Mapping
from typing import Any

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from canopy_client import ClientError
from canopy_gateway.answers import Answers, Piece
from canopy_gateway.errors import api_error_of
from canopy_gateway.json_text import encode
from canopy_gateway.responses import Head, Shape, usage_of

DONE = b"data: [DONE]\n\n"
COMMENT = b": no text yet\n\n"
_HEADERS = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}


class EventStream(Response, ABC):
    """Sends the pieces of `answers` as they come, and closes them whatever happens."""

    media_type = "text/event-stream"

    def __init__(
        self, answers: Answers, comment_interval_s: float, headers: Mapping[str, str]
    ) -> None:
        super().__init__(headers={**_HEADERS, **headers})
        del self.headers["content-length"]
        self._answers = answers
        self._comment_interval_s = comment_interval_s

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send it."""
        try:
            start = {"status": self.status_code, "headers": self.raw_headers}
            await send({"type": "http.response.start", **start})
            async for event in self._events():
                await send({"type": "http.response.body", "body": event, "more_body": True})
            await send({"type": "http.response.body", "body": b"", "more_body": False})
        finally:
            await self._answers.close()

    @abstractmethod
    def _events(self) -> AsyncIterator[bytes]:
        """The status is out: from here on an error can only be an event of its own."""


class ChunkStream(EventStream):
    """Of chats and completions."""

    def __init__(
        self,
        answers: Answers,
        shape: Shape,
        head: Head,
        choices_with_usage: int | None,
        comment_interval_s: float,
        headers: Mapping[str, str],
    ) -> None:
        """`choices_with_usage`: answers per prompt where the usage was asked for, else None."""
        super().__init__(answers, comment_interval_s, headers)
        self._shape = shape
        self._head = head
        self._choices_with_usage = choices_with_usage
        self._begun: set[int] = set()  # choices of which a piece was sent

    async def _events(self) -> AsyncIterator[bytes]:
        try:
            while not self._answers.has_ended:
                piece = await self._answers.next(self._comment_interval_s)
                yield COMMENT if piece is None else self._event(piece)
            if self._choices_with_usage is not None:
                usage = usage_of(self._answers.completions, self._choices_with_usage)
                yield _data(self._shape.empty(self._head) | {"usage": usage})
            yield DONE
        except ClientError as error:
            logging.getLogger(__name__).warning("an answer broke off: %s", error)
            yield _data(api_error_of(error, 1).body)

    def _event(self, piece: Piece) -> bytes:
        is_first = piece.index not in self._begun
        self._begun.add(piece.index)
        content = self._shape.piece(self._head, piece.index, piece.chunk, is_first)
        return _data(content if self._choices_with_usage is None else content | {"usage": None})


def _data(content: dict[str, Any]) -> bytes:
    return b"data: " + encode(content) + b"\n\n"
