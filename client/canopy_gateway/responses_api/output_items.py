"""The items of an answer as they grow, and the events that tell of it."""

import uuid
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from canopy_gateway.tools.events import (
    CallArguments,
    CallStart,
    Content,
    Event,
    Reasoning,
    new_call_id,
)

_PREFIXES = {"reasoning": "rs", "message": "msg", "function_call": "fc"}
_TEXT_OF = {"reasoning": "reasoning_text", "message": "output_text"}


@dataclass
class OutputItem:
    """Reasoning, a text, or a call, whose text is its arguments."""

    kind: str
    index: int  # in the output
    call: dict[str, str] = field(default_factory=dict)
    text: str = ""
    status: str = "in_progress"

    def __post_init__(self) -> None:
        self.id = f"{_PREFIXES[self.kind]}_{uuid.uuid4().hex}"

    def told(self) -> dict[str, Any]:
        """The item so far."""
        item = {"id": self.id, "type": self.kind, "status": self.status}
        if self.kind == "function_call":
            return item | self.call | {"arguments": self.text}
        own: dict[str, Any] = {"role": "assistant"} if self.kind == "message" else {"summary": []}
        return item | own | {"content": [self.part()] if self.text else []}

    def part(self) -> dict[str, Any]:
        """The one part of its content."""
        part = {"type": _TEXT_OF[self.kind], "text": self.text}
        return part | ({"annotations": [], "logprobs": []} if self.kind == "message" else {})

    def event(self, name: str, /, **fields: Any) -> dict[str, Any]:
        """One that concerns the item."""
        where = {"item_id": self.id, "output_index": self.index}
        where |= {"content_index": 0} if self.kind != "function_call" else {}
        return {"type": f"response.{name}", **where, **fields}


class OutputItems:
    """Reads what an answer's parser tells."""

    def __init__(self) -> None:
        self.items: list[OutputItem] = []
        self._blank = ""  # whitespace that may turn out to stand between items

    def add(self, event: Event) -> Iterator[dict[str, Any]]:
        """The events that follow."""
        if isinstance(event, CallStart):
            call = {"call_id": new_call_id(), "name": event.name}
            yield from self._open("function_call", call)
        elif isinstance(event, CallArguments):
            yield from self._grow(event.text)
        elif isinstance(event, Reasoning):
            yield from self._add_text("reasoning", event.text)
        elif isinstance(event, Content):
            yield from self._add_text("message", event.text)

    def end(self, status: str) -> Iterator[dict[str, Any]]:
        """status: of the last item, "completed" or "incomplete"."""
        if self._blank and not self.items:
            yield from self._open("message")
            yield from self._grow(self._blank)
        yield from self._close(status)

    @property
    def _last(self) -> OutputItem | None:
        """The one that may grow."""
        is_open = self.items and self.items[-1].status == "in_progress"
        return self.items[-1] if is_open else None

    def _add_text(self, kind: str, text: str) -> Iterator[dict[str, Any]]:
        if self._last is None or self._last.kind != kind:
            self._blank += text
            if not self._blank.strip():
                return
            text = self._blank
            yield from self._open(kind)
        yield from self._grow(text)

    def _open(self, kind: str, call: dict[str, str] | None = None) -> Iterator[dict[str, Any]]:
        self._blank = ""
        yield from self._close("completed")
        item = OutputItem(kind, len(self.items), call or {})
        self.items.append(item)
        added = {"output_index": item.index, "item": item.told()}
        yield {"type": "response.output_item.added", **added}
        if kind != "function_call":
            yield item.event("content_part.added", part=item.part())

    def _grow(self, text: str) -> Iterator[dict[str, Any]]:
        item = self.items[-1]
        item.text += text
        yield item.event(f"{_name(item)}.delta", delta=text, **_logprobs(item))

    def _close(self, status: str) -> Iterator[dict[str, Any]]:
        item = self._last
        if item is None:
            return
        item.status = status
        if item.kind == "function_call":
            whole = {"arguments": item.text, "name": item.call["name"]}
            yield item.event(f"{_name(item)}.done", **whole)
        else:
            yield item.event(f"{_name(item)}.done", text=item.text, **_logprobs(item))
            yield item.event("content_part.done", part=item.part())
        done = {"output_index": item.index, "item": item.told()}
        yield {"type": "response.output_item.done", **done}


def _name(item: OutputItem) -> str:
    return _TEXT_OF.get(item.kind, "function_call_arguments")


def _logprobs(item: OutputItem) -> dict[str, list[Any]]:
    """A text has a place for them."""
    return {"logprobs": []} if item.kind == "message" else {}
