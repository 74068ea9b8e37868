"""What /v1/responses takes: a chat in other words, whose context the client sends whole."""

from collections.abc import Mapping
from typing import Any

from pydantic import ConfigDict, Field, model_validator
from pydantic_core import PydanticCustomError

from canopy_client import SamplingOptions
from canopy_gateway.neutral import is_neutral, without_neutral, without_null
from canopy_gateway.responses_api.input_items import messages_of
from canopy_gateway.schema import ChatRequest, Limit
from canopy_gateway.strict import Text

# Not offered: each with the values that ask for nothing. Nothing is stored here.
_NEUTRAL_VALUES: Mapping[str, tuple[Any, ...]] = {
    "background": (False,),
    "context_management": ([],),
    "conversation": (),
    "max_tool_calls": (),
    "previous_response_id": (),
    "prompt": (),
    "top_logprobs": (0,),
    "truncation": ("disabled",),
}
_NEUTRAL_OF_REASONING: Mapping[str, tuple[Any, ...]] = {
    "effort": ("none",),
    "summary": ("auto",),
    "generate_summary": ("auto",),
}
# Reasoning is given as it is, and taken back so.
_INCLUDED = ("reasoning.encrypted_content",)
_OF_CHATS = frozenset(
    {
        *("messages", "n", "max_tokens", "max_completion_tokens", "response_format"),
        *("logprobs", "trace", "prompt_logprobs", "return_token_ids", "echoed"),
    }
)


def _in_its_own_words(schema: dict[str, Any]) -> None:
    fields = schema["properties"]
    for name in _OF_CHATS:
        fields.pop(name, None)
    items = {"type": "array", "items": {"type": "object"}}
    fields["input"] = {"anyOf": [{"type": "string"}, items]}
    fields |= {"text": {"type": "object"}, "include": {"type": "array", "items": {}}}
    fields["tools"] = items
    schema["required"] = ["model", "input"]


class ResponsesRequest(ChatRequest):
    """Body of /v1/responses."""

    model_config = ConfigDict(json_schema_extra=_in_its_own_words)

    max_output_tokens: Limit | None = None
    instructions: Text | None = None
    echoed: dict[str, Any] = Field(default_factory=dict)  # fields that the answer repeats

    @model_validator(mode="before")
    @classmethod
    def _as_a_chat(cls, given: Any) -> Any:
        given = without_neutral(without_null(given), (), _NEUTRAL_VALUES)
        if not isinstance(given, dict):
            return given
        for name in sorted(given.keys() & _OF_CHATS):
            raise PydanticCustomError(
                "unsupported", "{field} is no field of /v1/responses", {"field": name}
            )
        _check_include(given.pop("include", []))
        chat = {name: given[name] for name in given.keys() - {"input", "text", "reasoning"}}
        chat["messages"] = messages_of(given.get("input"), given.get("instructions"))
        chat |= _of_text(given.get("text", {}))
        if "tools" in chat and isinstance(chat["tools"], list):
            chat["tools"] = [_nested(tool) for tool in chat["tools"]]
        without_neutral(given.get("reasoning", {}), (), _NEUTRAL_OF_REASONING)
        names = ("metadata", "text", "tool_choice", "tools")
        return chat | {"echoed": {name: given[name] for name in names if name in given}}

    def options(self) -> SamplingOptions:
        """As of every chat."""
        options = super().options()
        if self.max_output_tokens is not None:
            options["max_tokens"] = self.max_output_tokens
        return options


def _check_include(include: Any) -> None:
    if not isinstance(include, list) or any(name not in _INCLUDED for name in include):
        raise PydanticCustomError(
            "unsupported", "{field} may hold " + ", ".join(_INCLUDED), {"field": "include"}
        )


def _of_text(text: Any) -> dict[str, Any]:
    """How the text is to be, in the words of a chat. Raises ValueError."""
    if not isinstance(text, dict) or text.keys() - {"format", "verbosity"}:
        raise ValueError("text must be an object of format and verbosity")
    chat = {"verbosity": text["verbosity"]} if "verbosity" in text else {}
    form = text.get("format")
    if is_neutral(form, ({"type": "text"},)):
        return chat
    if isinstance(form, dict) and form.get("type") == "json_schema":
        inner = {name: value for name, value in form.items() if name != "type"}
        return chat | {"response_format": {"type": "json_schema", "json_schema": inner}}
    return chat | {"response_format": form}


def _nested(tool: Any) -> Any:
    """A function as chats declare it; other tools are left to be refused."""
    if not isinstance(tool, dict) or tool.get("type") != "function" or "function" in tool:
        return tool
    function = {name: value for name, value in tool.items() if name != "type"}
    return {"type": "function", "function": function}
