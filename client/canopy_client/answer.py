"""An answer as it grows: from the outputs of responses to chunks, and from chunks to the whole."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from typing import Any

from canopy_client.errors import ClientError, ServerFailure, Unavailable
from canopy_client.types import Chunk, Completion, Health


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
        token_ids=_listed(outputs.get("token_ids", [])),
        logprobs=json.loads(outputs.get("logprobs", "[]")),
        prompt_logprobs=json.loads(outputs.get("prompt_logprobs", "[]")),
    )


def _listed(value: Any) -> Sequence[int]:
    """Over HTTP a tensor of one element comes as that element."""
    return value if isinstance(value, list | tuple) else [value]


def joined(first: Chunk, second: Chunk) -> Chunk:
    """Two neighboring chunks as one."""
    return Chunk(
        text=first.text + second.text,
        num_tokens=first.num_tokens + second.num_tokens,
        num_input_tokens=max(first.num_input_tokens, second.num_input_tokens),
        finish_reason=second.finish_reason or first.finish_reason,
        speculation=second.speculation or first.speculation,
        is_last=second.is_last,
        rounds=(*first.rounds, *second.rounds),
        token_ids=(*first.token_ids, *second.token_ids),
        logprobs=(*first.logprobs, *second.logprobs),
        prompt_logprobs=(*first.prompt_logprobs, *second.prompt_logprobs),
    )


def health_from(server_version: str, latency_ms: float, reported: Mapping[str, Any]) -> Health:
    """From what a model reports of itself; empty, and it is ready, where it just answered."""
    names = {field.name for field in fields(Health)} - {"server_version", "latency_ms"}
    own = {name: value for name, value in reported.items() if name in names}
    return Health(server_version, latency_ms, **own)


class Answer:
    """An answer as it grows, and whether more can come."""

    def __init__(self) -> None:
        self.has_ended = False
        self._texts: list[str] = []
        self._facts = Chunk("", 0, 0, None, None, is_last=False)  # of all chunks, without texts

    def take(self, event: Chunk | ClientError) -> Chunk:
        """Add a chunk, or raise the error that ended the answer."""
        if isinstance(event, ClientError):
            self.has_ended = True
            raise event
        self._texts.append(event.text)
        self._facts = joined(self._facts, replace(event, text="", rounds=()))
        self.has_ended = event.is_last
        return event

    @property
    def completion(self) -> Completion:
        """The answer so far; whole when it has ended."""
        return Completion(
            text="".join(self._texts),
            finish_reason=self._facts.finish_reason or "",
            num_input_tokens=self._facts.num_input_tokens,
            num_output_tokens=self._facts.num_tokens,
            speculation=self._facts.speculation or {},
            token_ids=self._facts.token_ids,
            logprobs=self._facts.logprobs,
            prompt_logprobs=self._facts.prompt_logprobs,
        )


def cut_short() -> ServerFailure:
    """The error for a connection that closed inside an answer."""
    return ServerFailure("the stream ended before the answer did")


class RetryableUnavailable(Exception):
    """The server was unavailable before it sent anything: the request may be sent again."""

    def __init__(self, reason: Unavailable) -> None:
        super().__init__(str(reason))
        self.reason = reason
