"""The turns of a chat as clients send them, and what of them reaches the server.

Answers come back as history with what their provider put beside the text: ids, annotations and
marks for a cache are dropped, and fields that hold text are accepted only where they are empty.
"""

from collections.abc import Mapping
from typing import Any, Literal

from pydantic import BaseModel, Field, field_validator, model_validator

from canopy_gateway.neutral import without_neutral
from canopy_gateway.strict import Strict, Text

_IGNORED_FIELDS = frozenset(
    {
        "annotations",
        "cache_control",
        "created_at",
        "extras",
        "finish_reason",
        "id",
        "index",
        "logprobs",
        "metadata",
        "object",
        "phase",
        "prompt_cache_breakpoint",
        "provider_specific_fields",
        "response_metadata",
        "speculation",
        "status",
        "stop_reason",
        "timestamp",
        "token_ids",
        "usage",
        "weight",
    }
)
_NEUTRAL_VALUES: Mapping[str, tuple[Any, ...]] = {
    "audio": (),
    "function_call": ({},),
    "images": ([],),
    "partial": (False,),
    "prefix": (False,),
    "reasoning": ("",),
    "reasoning_details": ([],),
    "refusal": ("",),
    "thinking_blocks": ([],),
}
_OTHER_MEDIA = {
    "audio": "audio",
    "file": "files",
    "image": "images",
    "image_url": "images",
    "input_audio": "audio",
    "input_file": "files",
    "input_image": "images",
    "video_url": "videos",
}


class CalledFunction(BaseModel):
    """Of a call in the history."""

    name: Text
    arguments: Text  # JSON


class ToolCall(BaseModel):
    """A call in the history; what else a provider put there is left out."""

    id: Text = ""
    type: Literal["function"] = "function"
    function: CalledFunction


class ChatMessage(Strict):
    """One turn of a chat; content parts are joined."""

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: Text
    name: Text | None = None
    tool_calls: list[ToolCall] = Field(default_factory=list)
    tool_call_id: Text | None = None
    reasoning_content: Text | None = None

    @model_validator(mode="before")
    @classmethod
    def _without_what_holds_nothing(cls, given: Any) -> Any:
        """An assistant's turn may come without content."""
        kept = without_neutral(given, _IGNORED_FIELDS, _NEUTRAL_VALUES)
        if isinstance(kept, dict) and kept.get("role") == "assistant":
            return {**kept, "content": kept.get("content") or ""}
        return kept

    @field_validator("content", mode="before")
    @classmethod
    def _joined(cls, content: Any) -> Any:
        if isinstance(content, list):
            return "".join(_text_of(part) for part in content)
        if not isinstance(content, str):
            raise ValueError("content must be a string or a list of text parts")
        return content

    def for_server(self) -> dict[str, Any]:
        """What a chat template reads; "developer" is the newer word for "system"."""
        role = "system" if self.role == "developer" else self.role
        message: dict[str, Any] = {"role": role, "content": self.content}
        if self.tool_calls:
            message["tool_calls"] = [call.model_dump() for call in self.tool_calls]
        texts = ("name", "tool_call_id", "reasoning_content")
        return message | {name: getattr(self, name) for name in texts if getattr(self, name)}


def _text_of(part: Any) -> str:
    kind = part.get("type") if isinstance(part, dict) else None
    if isinstance(kind, str) and kind in _OTHER_MEDIA:
        raise ValueError(f"{_OTHER_MEDIA[kind]} cannot be read by this model: send text parts only")
    if kind != "text" or not isinstance(part.get("text"), str):
        raise ValueError('content parts must be {"type": "text", "text": "..."}')
    unknown = part.keys() - {"type", "text"} - _IGNORED_FIELDS
    if unknown:
        raise ValueError(f"content parts have no field {min(unknown)}")
    return part["text"]
