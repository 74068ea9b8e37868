"""What is accepted: OpenAI's fields that the server can honour, and Canopy's own beside them.

A field declared as `Sent` reaches the server under its own name. A field that would change the
answer and cannot be honoured is refused, never ignored: see `neutral`.
"""

from typing import Annotated, Any, Literal, TypeVar

from pydantic import Field, field_validator, model_validator

from canopy_client import SamplingOptions
from canopy_gateway.messages import ChatMessage
from canopy_gateway.neutral import IGNORED_FIELDS, NEUTRAL_VALUES, without_neutral
from canopy_gateway.response_format import ResponseFormat
from canopy_gateway.strict import Integer, Strict, Text
from canopy_gateway.tools.schema import (
    NamedTool,
    Tool,
    ToolChoice,
    schema_of_arguments,
    schema_of_calls,
)

_SENT = object()
_Value = TypeVar("_Value")
Sent = Annotated[_Value | None, _SENT]

NumLogprobs = Annotated[Integer, Field(ge=0, le=20)]
Limit = Annotated[Integer, Field(ge=1)]
Prompts = str | list[str] | list[int] | list[list[int]]
UNSEEDED = -1  # as in vLLM
_OF_TEMPLATES = ("tools", "chat_template_kwargs", "add_generation_prompt", "continue_final_message")


class StreamOptions(Strict):
    """How to stream."""

    include_usage: bool = False
    include_obfuscation: bool = False  # accepted: padding is not offered
    continuous_usage_stats: Literal[False] = False


class SamplingRequest(Strict):
    """What chats and completions share."""

    model: Text
    stream: bool = False
    stream_options: StreamOptions = StreamOptions()
    n: Limit = 1
    seed: Annotated[Integer, Field(ge=-(1 << 63), lt=1 << 64)] | None = None
    stop: list[Text] = Field(default_factory=list)
    max_tokens: Limit | None = None
    max_completion_tokens: Limit | None = None
    temperature: Sent[float] = None
    top_p: Sent[float] = None
    presence_penalty: Sent[float] = None
    frequency_penalty: Sent[float] = None
    logit_bias: Sent[dict[Text, float]] = None
    # Beyond OpenAI's, named as the server names them.
    top_k: Sent[Integer] = None
    min_p: Sent[float] = None
    typical_p: Sent[float] = None
    repetition_penalty: Sent[float] = None
    bad_words: Sent[list[Text]] = None
    allowed_token_ids: Sent[list[Integer]] = None
    structured_outputs: Sent[dict[str, Any]] = None
    response_format: ResponseFormat | None = None
    prompt_logprobs: Sent[NumLogprobs] = None
    return_token_ids: Sent[bool] = None
    min_tokens: Sent[Integer] = None
    ignore_eos: Sent[bool] = None
    stop_token_ids: Sent[list[Integer]] = None
    speculation: Sent[Text] = None
    node_budget: Sent[Integer] = None
    acceptance: Sent[Text] = None

    @model_validator(mode="before")
    @classmethod
    def _without_what_asks_for_nothing(cls, given: Any) -> Any:
        return without_neutral(given, IGNORED_FIELDS, NEUTRAL_VALUES)

    @field_validator("stop", mode="before", json_schema_input_type=str | list[str])
    @classmethod
    def _listed(cls, stop: Any) -> Any:
        """An empty string asks for nothing."""
        return ([stop] if stop else []) if isinstance(stop, str) else stop

    @field_validator("seed")
    @classmethod
    def _seeded(cls, seed: int | None) -> int | None:
        return None if seed == UNSEEDED else seed

    @model_validator(mode="after")
    def _usage_needs_a_stream(self) -> "SamplingRequest":
        if self.stream_options.include_usage and not self.stream:
            raise ValueError("stream_options goes with stream = true")
        return self

    @model_validator(mode="after")
    def _one_form(self) -> "SamplingRequest":
        if self.structured_outputs and self.response_format:
            raise ValueError("response_format and structured_outputs say the same: send one")
        return self

    @model_validator(mode="after")
    def _one_limit(self) -> "SamplingRequest":
        both = None not in (self.max_tokens, self.max_completion_tokens)
        if both and self.max_tokens != self.max_completion_tokens:
            raise ValueError("max_tokens and max_completion_tokens differ: send one of them")
        return self

    @property
    def num_logprobs(self) -> int | None:
        """Likeliest tokens told with each one of the answer; None: not even its own log-prob."""
        raise NotImplementedError

    @property
    def num_answers(self) -> int:
        """Of each prompt."""
        return self.n

    def options(self) -> SamplingOptions:
        """What goes to the server; the seed belongs to each choice."""
        fields = type(self).model_fields
        given = {name: getattr(self, name) for name in fields if _SENT in fields[name].metadata}
        given["max_tokens"] = self.max_completion_tokens or self.max_tokens
        given["stop"] = self.stop or None
        given["logprobs"] = self.num_logprobs
        if self.response_format is not None:
            given["structured_outputs"] = self.response_format.structured_outputs()
        kept = {name: value for name, value in given.items() if value is not None}
        return SamplingOptions(**kept)  # type: ignore[typeddict-item]


class ChatRequest(SamplingRequest):
    """Body of /v1/chat/completions."""

    trace: Sent[bool] = None  # pieces carry the draft trees of their rounds
    messages: list[ChatMessage] = Field(min_length=1)

    tools: list[Tool] = Field(default_factory=list)
    tool_choice: ToolChoice | None = None
    parallel_tool_calls: bool = True
    chat_template_kwargs: Sent[dict[str, Any]] = None
    add_generation_prompt: Sent[bool] = None
    continue_final_message: Sent[bool] = None
    logprobs: bool = False
    top_logprobs: NumLogprobs = 0

    @model_validator(mode="after")
    def _top_logprobs_go_with_logprobs(self) -> "ChatRequest":
        if self.top_logprobs and not self.logprobs:
            raise ValueError("top_logprobs goes with logprobs = true")
        return self

    @model_validator(mode="after")
    def _tools_that_are_there(self) -> "ChatRequest":
        names = self.tool_names
        if len(set(names)) < len(names):
            raise ValueError("two tools have the same name")
        if self.forced_tools and not self.tools:
            raise ValueError("tool_choice goes with tools")
        chosen = self.tool_choice
        if isinstance(chosen, NamedTool) and chosen.function.name not in names:
            raise ValueError(f"tool_choice names no tool: {chosen.function.name}")
        if self.forced_tools and (self.structured_outputs or self.response_format):
            raise ValueError("a tool call that is required leaves no room for another form")
        return self

    @property
    def tool_names(self) -> list[str]:
        return [tool.function.name for tool in self.tools]

    @property
    def is_structured(self) -> bool:
        """Whether a grammar holds for the answer."""
        return "structured_outputs" in self.options()

    @property
    def is_rendered_as_usual(self) -> bool:
        """Whether the prompt ends as that of any chat."""
        is_odd = self.chat_template_kwargs or self.continue_final_message
        return not is_odd and self.add_generation_prompt is not False

    @property
    def forced_tools(self) -> bool:
        """Whether the answer must be a call."""
        return self.tool_choice not in (None, "auto", "none")

    @property
    def offered_tools(self) -> list[Tool]:
        """Those that the model is told of."""
        return [] if self.tool_choice == "none" else self.tools

    @property
    def max_calls(self) -> int | None:
        return None if self.parallel_tool_calls else 1

    @property
    def num_logprobs(self) -> int | None:
        return self.top_logprobs if self.logprobs else None

    def options(self) -> SamplingOptions:
        """As of every request; a call that must come is the form of the whole answer."""
        options = super().options()
        if self.offered_tools:
            options["tools"] = [tool.for_template() for tool in self.offered_tools]
        if isinstance(self.tool_choice, NamedTool):
            name = self.tool_choice.function.name
            [tool] = [tool for tool in self.tools if tool.function.name == name]
            options["structured_outputs"] = {"json": schema_of_arguments(tool)}
        elif self.forced_tools:
            options["structured_outputs"] = {"json": schema_of_calls(self.tools, self.max_calls)}
        return options

    def template_options(self) -> SamplingOptions:
        """Those that say how the chat is rendered."""
        return {name: v for name, v in self.options().items() if name in _OF_TEMPLATES}  # type: ignore[return-value]

    @model_validator(mode="after")
    def _a_trace_needs_a_stream(self) -> "ChatRequest":
        if self.trace and not self.stream:
            raise ValueError("trace goes with stream = true")
        return self


class CompletionRequest(SamplingRequest):
    """Body of /v1/completions."""

    prompt: list[Text | list[Integer]] = Field(min_length=1)  # each is answered `n` times
    logprobs: NumLogprobs | None = None
    echo: Sent[bool] = None
    best_of: Limit | None = None  # answers made, of which the `n` likeliest are given

    @field_validator("prompt", mode="before", json_schema_input_type=Prompts)
    @classmethod
    def _listed_prompts(cls, prompt: Any) -> Any:
        """Prompts are texts or lists of token ids."""
        if isinstance(prompt, str):
            return [prompt]
        is_tokens = isinstance(prompt, list) and all(isinstance(p, int | float) for p in prompt)
        return [prompt] if is_tokens and prompt else prompt

    @field_validator("logprobs", mode="before")
    @classmethod
    def _none_for_false(cls, logprobs: Any) -> Any:
        return None if logprobs is False else logprobs

    @model_validator(mode="after")
    def _best_of_takes_whole_answers(self) -> "CompletionRequest":
        if self.best_of is not None and self.best_of < self.n:
            raise ValueError("best_of must be n or more")
        if self.best_of is not None and self.best_of > self.n and self.stream:
            raise ValueError("best_of above n does not go with stream = true")
        return self

    @property
    def num_logprobs(self) -> int | None:
        return self.logprobs

    @property
    def num_answers(self) -> int:
        """Of each prompt."""
        return self.best_of or self.n

    def options(self) -> SamplingOptions:
        """As of every request; an echo tells the log-probs of the prompt, too."""
        options = super().options()
        if self.echo and self.logprobs is not None:
            options["prompt_logprobs"] = self.logprobs
        if self.num_answers > self.n and self.logprobs is None:
            options["logprobs"] = 0  # to tell which are the likeliest
        return options
