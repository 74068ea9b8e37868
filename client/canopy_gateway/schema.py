"""What is accepted: OpenAI's fields that the server can honour, and Canopy's own beside them.

A field that would change the answer and cannot be honoured is refused, never ignored.
"""

from typing import Any, ClassVar, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

from canopy_client import SamplingOptions

# Without effect on the answer: accepted and dropped.
_IGNORED = (
    "metadata",
    "parallel_tool_calls",
    "prompt_cache_key",
    "prompt_cache_retention",
    "safety_identifier",
    "service_tier",
    "store",
    "user",
)
# Not offered: accepted only where they ask for nothing.
_UNSUPPORTED = (
    "audio",
    "best_of",
    "echo",
    "frequency_penalty",
    "function_call",
    "functions",
    "logit_bias",
    "logprobs",
    "modalities",
    "moderation",
    "prediction",
    "presence_penalty",
    "reasoning_effort",
    "response_format",
    "suffix",
    "tool_choice",
    "tools",
    "top_logprobs",
    "verbosity",
    "web_search_options",
)
_ASKS_FOR_NOTHING: tuple[Any, ...] = (None, {}, [], "", "none", ["text"], {"type": "text"})


def _is_neutral(name: str, value: Any) -> bool:
    if name.endswith("_penalty"):
        return value is None or (type(value) in (int, float) and value == 0)
    if name == "best_of":
        return value is None or (type(value) is int and value == 1)
    return value is False or value in _ASKS_FOR_NOTHING


class _Strict(BaseModel):
    """Types as JSON has them, no unknown fields."""

    model_config = ConfigDict(extra="forbid", strict=True)


class StreamOptions(_Strict):
    """How to stream."""

    include_usage: bool = False
    include_obfuscation: bool = False  # accepted: padding is not offered


class SamplingRequest(_Strict):
    """What chats and completions share."""

    OPTIONS: ClassVar[tuple[str, ...]] = (
        "temperature",
        "top_p",
        "top_k",
        "min_p",
        "min_tokens",
        "ignore_eos",
        "stop_token_ids",
        "speculation",
        "node_budget",
        "acceptance",
    )

    model: str
    stream: bool = False
    stream_options: StreamOptions | None = None
    n: int | None = Field(None, ge=1)
    seed: int | None = Field(None, ge=-(1 << 63), lt=1 << 64)
    stop: str | list[str] | None = None
    max_tokens: int | None = Field(None, ge=1)
    temperature: float | None = None
    top_p: float | None = None
    # Beyond OpenAI's, named as the server names them.
    top_k: int | None = None
    min_p: float | None = None
    min_tokens: int | None = None
    ignore_eos: bool | None = None
    stop_token_ids: list[int] | None = None
    speculation: str | None = None
    node_budget: int | None = None
    acceptance: str | None = None

    @model_validator(mode="before")
    @classmethod
    def _without_what_asks_for_nothing(cls, given: Any) -> Any:
        if not isinstance(given, dict):
            return given
        for name in _UNSUPPORTED:
            if name in given and not _is_neutral(name, given[name]):
                raise ValueError(f"{name} is not supported by this server")
        dropped = (*_IGNORED, *_UNSUPPORTED)
        return {name: value for name, value in given.items() if name not in dropped}

    @model_validator(mode="after")
    def _stream_options_need_a_stream(self) -> "SamplingRequest":
        if self.stream_options is not None and not self.stream:
            raise ValueError("stream_options goes with stream = true")
        return self

    @property
    def num_choices(self) -> int:
        """Answers per prompt."""
        return self.n or 1

    @property
    def includes_usage(self) -> bool:
        """Whether a stream ends with the usage."""
        return self.stream_options is not None and self.stream_options.include_usage

    @property
    def token_limit(self) -> int | None:
        """Most tokens of one answer; None = the server's default."""
        return self.max_tokens

    def options(self) -> SamplingOptions:
        """The same for the server; the seed belongs to each choice."""
        given: dict[str, Any] = {name: getattr(self, name) for name in self.OPTIONS}
        given["max_tokens"] = self.token_limit
        given["stop"] = [self.stop] if isinstance(self.stop, str) else self.stop or None
        kept = {name: value for name, value in given.items() if value is not None}
        return SamplingOptions(**kept)  # type: ignore[typeddict-item]


class TextPart(_Strict):
    """A piece of a message."""

    type: Literal["text"]
    text: str


class ChatMessage(_Strict):
    """One turn of a chat."""

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: str | list[TextPart]
    name: str | None = None

    @model_validator(mode="before")
    @classmethod
    def _without_empty_fields(cls, given: Any) -> Any:
        """Answers sent back as history carry fields that hold nothing."""
        if not isinstance(given, dict):
            return given
        return {name: value for name, value in given.items() if value not in (None, [])}

    def for_server(self) -> dict[str, Any]:
        """Role and text; "developer" is the newer word for "system"."""
        parts = [self.content] if isinstance(self.content, str) else [p.text for p in self.content]
        role = "system" if self.role == "developer" else self.role
        message = {"role": role, "content": "".join(parts)}
        return message if self.name is None else {**message, "name": self.name}


class ChatRequest(SamplingRequest):
    """Body of /v1/chat/completions."""

    OPTIONS = (*SamplingRequest.OPTIONS, "trace")

    trace: bool | None = None  # pieces carry the draft trees of their rounds
    messages: list[ChatMessage] = Field(min_length=1)
    max_completion_tokens: int | None = Field(None, ge=1)

    @model_validator(mode="after")
    def _a_trace_needs_a_stream(self) -> "ChatRequest":
        if self.trace and not self.stream:
            raise ValueError("trace goes with stream = true")
        return self

    @model_validator(mode="after")
    def _one_limit(self) -> "ChatRequest":
        both = None not in (self.max_tokens, self.max_completion_tokens)
        if both and self.max_tokens != self.max_completion_tokens:
            raise ValueError("max_tokens and max_completion_tokens differ: send one of them")
        return self

    @property
    def token_limit(self) -> int | None:
        """Either name counts."""
        return self.max_completion_tokens or self.max_tokens


class CompletionRequest(SamplingRequest):
    """Body of /v1/completions."""

    prompt: str | list[str] = Field(min_length=1)

    @property
    def prompts(self) -> list[str]:
        """Each is answered `n` times."""
        return [self.prompt] if isinstance(self.prompt, str) else self.prompt
