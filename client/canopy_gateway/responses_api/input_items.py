"""The items of a request's input, as the turns of a chat."""

from collections.abc import Callable, Mapping
from typing import Any

_TEXT_PARTS = ("input_text", "output_text", "reasoning_text")


def messages_of(given: Any, instructions: str | None) -> list[dict[str, Any]]:
    """As `ChatMessage` reads them. given: a text, or a list of items.

    What a model said in one turn, reasoning, text and calls, becomes one message. Raises ValueError
    for what is no chat.
    """
    turns: list[dict[str, Any]] = []
    if instructions is not None:
        turns.append({"role": "system", "content": instructions})
    if isinstance(given, str):
        return [*turns, {"role": "user", "content": given}]
    if not isinstance(given, list):
        raise ValueError("input must be a text or a list of items")
    for index, item in enumerate(given):
        kind = item.get("type", "message") if isinstance(item, dict) else None
        if not isinstance(kind, str) or kind not in _READERS:
            known = ", ".join(_READERS)
            raise ValueError(f"input.{index}: items must be objects of the types {known}")
        _add(turns, _READERS[kind](item))
    return turns


def _add(turns: list[dict[str, Any]], turn: dict[str, Any]) -> None:
    """Text after a call belongs to a turn of its own, as does text after text."""
    last = turns[-1] if turns else {}
    is_same = turn.get("role") == "assistant" == last.get("role")
    begins = "reasoning_content" in turn or (
        "content" in turn and last.keys() & {"content", _CALLS}
    )
    if not is_same or begins:
        turns.append(turn)
    else:
        last.update(turn | {_CALLS: last.get(_CALLS, []) + turn.get(_CALLS, [])})


_CALLS = "tool_calls"


def _message(item: Mapping[str, Any]) -> dict[str, Any]:
    others = {name: value for name, value in item.items() if name != "type"}
    return {**others, "content": _parts(item.get("content"))}


def _function_call(item: Mapping[str, Any]) -> dict[str, Any]:
    function = {"name": item.get("name"), "arguments": item.get("arguments")}
    call = {"id": item.get("call_id"), "type": "function", "function": function}
    return {"role": "assistant", _CALLS: [call]}


def _function_call_output(item: Mapping[str, Any]) -> dict[str, Any]:
    output = _parts(item.get("output"))
    return {"role": "tool", "tool_call_id": item.get("call_id"), "content": output}


def _reasoning(item: Mapping[str, Any]) -> dict[str, Any]:
    parts = item.get("content") or []
    if item.get("encrypted_content") or not isinstance(parts, list):
        raise ValueError("reasoning must come as the content that this server gave")
    texts = [part.get("text", "") if isinstance(part, dict) else "" for part in parts]
    return {"role": "assistant", "reasoning_content": "".join(map(str, texts))}


def _parts(content: Any) -> Any:
    """Parts of text by the name that a chat has for them; others are left to be refused."""
    if not isinstance(content, list):
        return content
    return [
        {"type": "text", "text": part.get("text")}
        if isinstance(part, dict) and part.get("type") in _TEXT_PARTS
        else part
        for part in content
    ]


_READERS: Mapping[str, Callable[[Mapping[str, Any]], dict[str, Any]]] = {
    "message": _message,
    "function_call": _function_call,
    "function_call_output": _function_call_output,
    "reasoning": _reasoning,
}
