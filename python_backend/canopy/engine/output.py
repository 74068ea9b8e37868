"""What a request gives back, and the way out for it."""

from dataclasses import dataclass
from typing import Any, Protocol

from canopy.errors import CanopyError


@dataclass(frozen=True)
class TokenLogprob:
    """One token's log-prob, its rank among all, and the likeliest tokens in its place."""

    token_id: int
    logprob: float | None  # None: nothing stands before it
    rank: int
    top: tuple[tuple[int, float], ...]  # token id and log-prob, best first


@dataclass(frozen=True)
class Delta:
    """A piece of an answer. With a finish reason it is the last one."""

    text: str
    num_tokens: int  # emitted tokens behind this piece
    num_input_tokens: int = 0  # of the prompt
    finish_reason: str | None = None  # "stop" or "length"
    report: dict[str, Any] | None = None  # the speculation report, with the last piece
    rounds: list[dict[str, Any]] | None = None  # since the last piece, when a trace is asked for
    token_ids: tuple[int, ...] = ()  # of the emitted tokens behind this piece
    logprobs: tuple[TokenLogprob, ...] = ()  # one a token, where they are asked for
    # With the first piece, one for every prompt token.
    prompt_logprobs: tuple[TokenLogprob, ...] = ()

    @property
    def is_last(self) -> bool:
        return self.finish_reason is not None


class Sink(Protocol):
    """One client's end. Exactly one of a last `send` or `fail` ends it."""

    def send(self, delta: Delta) -> None:
        """Hand out a piece."""
        ...

    def fail(self, error: CanopyError) -> None:
        """End with an error."""
        ...

    def is_cancelled(self) -> bool:
        """The client gave up; nothing it is sent will be read."""
        ...
