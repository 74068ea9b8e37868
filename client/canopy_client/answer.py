"""An answer as it grows: from the outputs of responses to chunks, and from chunks to the whole."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from canopy_client.errors import ClientError, ServerFailure, Unavailable
from canopy_client.types import Chunk, Completion


def chunk_of(outputs: Mapping[str, Any], is_last: bool) -> Chunk:
    """One response by output name; a response without outputs is a Chunk without text."""
    reason = outputs.get("finish_reason", "None")
    report = outputs.get("speculation")
    return Chunk(
        text=outputs.get("text_output", ""),
        num_tokens=outputs.get("num_output_tokens", 0),
        num_input_tokens=outputs.get("num_input_tokens", 0),
        finish_reason=None if reason == "None" else reason,
        speculation=None if report is None else json.loads(report),
        is_last=is_last,
        rounds=json.loads(outputs.get("trace", "[]")),
    )


def join_chunks(chunks: Sequence[Chunk]) -> Completion:
    """The whole answer of a stream that has ended."""
    return Completion(
        text="".join(chunk.text for chunk in chunks),
        finish_reason=next((c.finish_reason for c in reversed(chunks) if c.finish_reason), ""),
        num_input_tokens=max((chunk.num_input_tokens for chunk in chunks), default=0),
        num_output_tokens=sum(chunk.num_tokens for chunk in chunks),
        speculation=next((c.speculation for c in reversed(chunks) if c.speculation), {}),
    )


class Answer:
    """The chunks that came so far, and whether more can come."""

    def __init__(self) -> None:
        self.has_ended = False
        self._chunks: list[Chunk] = []

    def take(self, event: Chunk | ClientError) -> Chunk:
        """Add a chunk, or raise the error that ended the answer."""
        if isinstance(event, ClientError):
            self.has_ended = True
            raise event
        self._chunks.append(event)
        self.has_ended = event.is_last
        return event

    @property
    def completion(self) -> Completion:
        """The answer so far; whole when it has ended."""
        return join_chunks(self._chunks)


def cut_short() -> ServerFailure:
    """The error for a connection that closed inside an answer."""
    return ServerFailure("the stream ended before the answer did")


class NothingCame(Exception):
    """The server was unavailable before it sent anything: the request may be sent again."""

    def __init__(self, reason: Unavailable) -> None:
        super().__init__(str(reason))
        self.reason = reason
