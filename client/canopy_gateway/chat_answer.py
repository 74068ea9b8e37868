"""The parts of a chat's answer: content, reasoning and tool calls, whole or in pieces."""

from collections.abc import Iterable, Mapping
from typing import Any

from canopy_gateway.errors import APIError
from canopy_gateway.schema import ChatRequest
from canopy_gateway.settings import GatewaySettings
from canopy_gateway.tools.events import (
    CallArguments,
    CallStart,
    Content,
    Event,
    Reasoning,
    new_call_id,
)
from canopy_gateway.tools.formats import FORMATS, REQUIRED, AnswerParser, CallParser, NamedCall
from canopy_gateway.tools.reasoning import PlainAnswer, ReasoningParser
from canopy_gateway.tools.schema import NamedTool


def has_reasoning(request: ChatRequest, form: Mapping[str, Any], settings: GatewaySettings) -> bool:
    """Whether an answer may begin with reasoning. form: as of `answer_parser`."""
    is_told = settings.reasoning_parser == "auto" and bool(form.get("has_reasoning"))
    return not request.forced_tools and (is_told or settings.reasoning_parser == "think")


def answer_parser(
    request: ChatRequest, form: Mapping[str, Any], settings: GatewaySettings
) -> AnswerParser:
    """What reads one answer. form: `chat` of the server's description; empty: it tells nothing.

    Raises APIError where tools are offered to a model whose calls cannot be read.
    """
    if isinstance(request.tool_choice, NamedTool):
        return NamedCall(request.tool_choice.function.name)
    if request.forced_tools:
        return CallParser(REQUIRED, request.tool_names, request.max_calls)
    parser: AnswerParser = PlainAnswer()
    if request.offered_tools:
        name = settings.tool_call_parser
        name = form.get("tool_format") or "none" if name == "auto" else name
        if name == "none":
            raise APIError(
                400,
                "the chat template of this model has no tool calls: send tool_choice "
                '"required" or a tool\'s name, or start the gateway with --tool-call-parser',
                "unsupported",
                "tools",
            )
        parser = CallParser(FORMATS[name], request.tool_names, request.max_calls)
    if has_reasoning(request, form, settings):
        # A grammar holds for the whole answer and closes nothing that the prompt has opened.
        is_open = bool(form.get("opens_reasoning")) and not request.is_structured
        return ReasoningParser(parser, is_open)
    return parser


class ChatAnswer:
    """One answer as it grows."""

    def __init__(self, parser: AnswerParser, is_named: bool = False) -> None:
        """is_named: one tool was asked for by name; then the answer ends as any other."""
        self._parser = parser
        self._is_named = is_named
        self._has_calls = False

    def delta(self, text: str, is_last: bool) -> dict[str, Any]:
        """What the next piece of text adds to the message, by field."""
        events = [*self._parser.feed(text), *(self._parser.end() if is_last else ())]
        delta: dict[str, Any] = {}
        for name, kind in (("reasoning_content", Reasoning), ("content", Content)):
            found = "".join(event.text for event in events if isinstance(event, kind))
            delta |= {name: found} if found else {}
        if calls := _calls(events):
            self._has_calls = True
            delta["tool_calls"] = calls
        return delta

    def message(self, text: str) -> dict[str, Any]:
        """The whole message."""
        delta = self.delta(text, is_last=True)
        for call in delta.get("tool_calls", ()):
            del call["index"]
        content = delta.get("content", "").strip() if self._has_calls else delta.get("content", "")
        message = {"role": "assistant", "content": content, "refusal": None} | {
            name: value for name, value in delta.items() if name != "content"
        }
        return message | ({"content": content or None} if self._has_calls else {})

    def finish_reason(self, reason: str | None) -> str | None:
        """As OpenAI tells it: an answer that ends with calls waits for their results."""
        is_call = reason == "stop" and self._has_calls and not self._is_named
        return "tool_calls" if is_call else reason


def _calls(events: Iterable[Event]) -> list[dict[str, Any]]:
    """One entry a call, its start and its arguments joined."""
    calls: dict[int, dict[str, Any]] = {}
    for event in events:
        if isinstance(event, CallStart):
            calls[event.index] = {
                "index": event.index,
                "id": new_call_id(),
                "type": "function",
                "function": {"name": event.name, "arguments": ""},
            }
        elif isinstance(event, CallArguments):
            nothing = {"index": event.index, "function": {"arguments": ""}}
            call = calls.setdefault(event.index, nothing)
            call["function"]["arguments"] += event.text
    return list(calls.values())
