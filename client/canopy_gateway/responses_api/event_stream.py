"""The events of /v1/responses, each with its name; the last one holds the whole answer."""

import logging
from collections.abc import AsyncIterator, Mapping
from typing import Any

from canopy_client import ClientError
from canopy_gateway.answers import Answers
from canopy_gateway.errors import api_error_of
from canopy_gateway.event_stream import COMMENT, EventStream
from canopy_gateway.json_text import encode
from canopy_gateway.responses_api.answer import ResponseAnswer


class ResponseEventStream(EventStream):
    """Of one answer."""

    def __init__(
        self,
        answers: Answers,
        answer: ResponseAnswer,
        comment_interval_s: float,
        headers: Mapping[str, str],
    ) -> None:
        super().__init__(answers, comment_interval_s, headers)
        self._answer = answer

    async def _events(self) -> AsyncIterator[bytes]:
        for event in self._answer.begin():
            yield _named(event)
        try:
            while not self._answers.has_ended:
                piece = await self._answers.next(self._comment_interval_s)
                if piece is None:
                    yield COMMENT
                    continue
                for event in self._answer.feed(piece.chunk):
                    yield _named(event)
            for event in self._answer.end(self._answers.completions[0]):
                yield _named(event)
        except ClientError as error:
            logging.getLogger(__name__).warning("an answer broke off: %s", error)
            for event in self._answer.failed(api_error_of(error, 1)):
                yield _named(event)


def _named(event: dict[str, Any]) -> bytes:
    return b"event: " + event["type"].encode() + b"\ndata: " + encode(event) + b"\n\n"
