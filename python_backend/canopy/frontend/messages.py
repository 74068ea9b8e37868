"""Messages of a chat, and JSON texts, as clients send them."""

import json
from typing import Any

from canopy.errors import InvalidRequest

_ROLES = ("system", "user", "assistant", "tool")
_TEXTS = ("name", "tool_call_id", "reasoning_content")
_FIELDS = ("role", "content", "tool_calls", *_TEXTS)


def parse_json(text: bytes, name: str) -> Any:
    """Raises InvalidRequest that names the input."""
    try:
        value = json.loads(text)
        json.dumps(value, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        raise InvalidRequest(f"{name} holds half of a surrogate pair: send valid Unicode") from None
    except (ValueError, RecursionError) as error:
        raise InvalidRequest(f"{name} is not valid JSON: {error}") from error
    return value


def parse_messages(text: bytes) -> list[dict[str, Any]]:
    """Each as a chat template reads it. Raises InvalidRequest."""
    messages = parse_json(text, "messages")
    if not isinstance(messages, list) or not messages:
        raise InvalidRequest("messages must be a non-empty JSON list of {role, content}")
    return [_parse_message(message) for message in messages]


def _parse_message(message: Any) -> dict[str, Any]:
    if not isinstance(message, dict):
        raise InvalidRequest("each message must be an object with role and content")
    message = {name: value for name, value in message.items() if value is not None}
    unknown = sorted(message.keys() - set(_FIELDS))
    if unknown:
        raise InvalidRequest(
            f"unknown field {unknown[0]} of a message: known are {', '.join(_FIELDS)}"
        )
    if message.get("role") not in _ROLES:
        raise InvalidRequest(f"a message's role must be one of {', '.join(_ROLES)}")
    content = message.get("content", "" if message["role"] == "assistant" else None)
    if isinstance(content, list):
        content = _joined_parts(content)
    if not isinstance(content, str):
        raise InvalidRequest("a message's content must be a string or a list of text parts")
    for name in _TEXTS:
        if not isinstance(message.get(name, ""), str):
            raise InvalidRequest(f"a message's {name} must be a string")
    message = {**message, "content": content}
    if "tool_calls" in message:
        message["tool_calls"] = _parse_calls(message["tool_calls"])
    return message


def _parse_calls(calls: Any) -> list[dict[str, Any]]:
    """Arguments come as JSON texts, and templates want what they hold."""
    try:
        return [
            {
                **call,
                "function": {**call["function"], "arguments": _read(call["function"]["arguments"])},
            }
            for call in calls
        ]
    except (TypeError, KeyError, ValueError, RecursionError) as error:
        raise InvalidRequest(
            "a message's tool_calls must be a list of {id, type, function: {name, arguments}}, "
            f"arguments being a JSON text: {error!r}"
        ) from error


def _read(arguments: Any) -> Any:
    """A tool without parameters may be called with none, an empty text."""
    return json.loads(arguments or "{}") if isinstance(arguments, str) else arguments


def _joined_parts(parts: list[Any]) -> str:
    for part in parts:
        is_text = isinstance(part, dict) and part.get("type") == "text"
        if not is_text or not isinstance(part.get("text"), str):
            raise InvalidRequest('content parts must be {"type": "text", "text": ...}')
    return "".join(part["text"] for part in parts)
