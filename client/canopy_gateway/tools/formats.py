"""The forms in which models write tool calls.

    hermes   <tool_call>{"name": ..., "arguments": {...}}</tool_call>, one a call; Qwen's, too
    llama3   the answer is {"name": ..., "parameters": {...}}, several divided by ";"
    mistral  [TOOL_CALLS][{"name": ..., "arguments": {...}}, ...]

What looks like a call and is none is content. A model may leave the mark out: an answer that begins
with the call of a known tool is one.
"""

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import ClassVar, Protocol

from canopy_gateway.tools.call_scanner import CallScanner
from canopy_gateway.tools.events import CallArguments, CallStart, Content, Event

_WHITESPACE = " \n\t\r"


class AnswerParser(Protocol):
    """Reads one answer in pieces."""

    def feed(self, text: str) -> Iterator[Event]:
        """What the next piece of text brings."""
        ...

    def end(self) -> Iterator[Event]:
        """What was held back."""
        ...


@dataclass(frozen=True)
class CallFormat:
    """How calls stand in a text."""

    opening: str  # before a call, or before a list of them
    between: str  # characters that may stand between two calls, and after the last
    closing: str = ""  # after each call
    at_start: tuple[str, ...] = ()  # what an answer that begins with a call begins with, unmarked


FORMATS = {
    "hermes": CallFormat("<tool_call>", "", "</tool_call>"),
    "llama3": CallFormat("<|python_tag|>", ";", at_start=("{",)),
    "mistral": CallFormat("[TOOL_CALLS]", "[],", at_start=("[{", "[ {")),
}
# What tool_choice "required" makes the whole answer: a JSON list of calls.
REQUIRED = CallFormat("", "[],", at_start=("[",))


class _State(Enum):
    START = 0  # nothing came but whitespace
    TEXT = 1
    BEFORE_CALL = 2  # behind a mark, or where an unmarked call seems to begin
    CALL = 3
    AFTER_CALL = 4


class CallParser:
    """Content and calls of an answer in one of the forms."""

    def __init__(
        self, form: CallFormat, tools: Collection[str], max_calls: int | None = None
    ) -> None:
        """tools: the names of those known. max_calls: further ones are left out."""
        self._form = form
        self._tools = tools
        self._max_calls = max_calls
        self._state = _State.START
        self._rest = ""  # what is not decided yet
        self._mark = ""  # what stands before the call that is read, shown if it is none
        self._is_marked = False  # by the form's own mark, and not by how the answer begins
        self._scanner = CallScanner()
        self._num_calls = 0
        self._is_named = False  # the start of the call that is read was told

    def feed(self, text: str) -> Iterator[Event]:
        """As of `AnswerParser`."""
        self._rest += text
        before = None
        while self._rest and before != (self._state, len(self._rest)):
            before = (self._state, len(self._rest))
            yield from self._steps[self._state](self)

    def end(self) -> Iterator[Event]:
        """As of `AnswerParser`. A call that was cut short keeps what came of it."""
        held = self._rest
        if self._state is _State.CALL:
            held = "" if self._is_named else self._mark + self._scanner.raw
        elif self._state is _State.BEFORE_CALL:
            held = self._mark + self._rest
        elif self._state is _State.AFTER_CALL:
            held = ""
        self._rest = ""
        if held:
            yield Content(held)

    def _start(self) -> Iterator[Event]:
        stripped = self._rest.lstrip()
        if any(stripped.startswith(mark) for mark in self._form.at_start):
            self._rest, self._mark, self._state = stripped, "", _State.BEFORE_CALL
        elif stripped and not any(mark.startswith(stripped) for mark in self._form.at_start):
            self._state = _State.TEXT
        yield from ()

    def _text(self) -> Iterator[Event]:
        opening = self._form.opening
        shown, mark, after = self._rest.partition(opening) if opening else (self._rest, "", "")
        if mark:
            self._rest, self._mark, self._state = after, mark, _State.BEFORE_CALL
            self._is_marked = True
        else:
            kept = len(shown) - held_back(shown, opening)
            shown, self._rest = shown[:kept], shown[kept:]
        if shown:
            yield Content(shown)

    def _before_call(self) -> Iterator[Event]:
        found = self._rest.lstrip(_WHITESPACE + self._form.between)
        if found.startswith("{"):
            self._mark += self._rest.removesuffix(found)
            self._rest, self._state = found, _State.CALL
            self._scanner, self._is_named = CallScanner(), False
        elif found:
            yield from self._shown(self._mark + self._rest)

    def _call(self) -> Iterator[Event]:
        scanner = self._scanner
        self._rest = self._rest[scanner.feed(self._rest) :]
        is_told = self._max_calls is None or self._num_calls < self._max_calls
        if scanner.name and not self._is_marked and scanner.name not in self._tools:
            yield from self._shown(self._mark + scanner.raw, self._rest)
            return
        if scanner.name and not self._is_named:
            self._is_named = True
            if is_told:
                yield CallStart(self._num_calls, scanner.name)
        if is_told and (new := scanner.new_arguments()):
            yield CallArguments(self._num_calls, new)
        if scanner.is_complete and self._is_named:
            self._state = _State.AFTER_CALL
            self._num_calls += 1
        elif scanner.is_complete:
            yield from self._shown(self._mark + scanner.raw, self._rest)

    def _after_call(self) -> Iterator[Event]:
        """The end of the call, and where the form has one mark for several, the next one."""
        form, found = self._form, self._rest.lstrip(_WHITESPACE + self._form.between)
        if form.closing and found.startswith(form.closing):
            self._rest, self._state = found[len(form.closing) :].lstrip(), _State.TEXT
        elif not form.closing and found.startswith("{"):
            self._rest, self._mark, self._state = found, "", _State.BEFORE_CALL
        elif found and not (form.closing and form.closing.startswith(found)):
            self._rest, self._state = found, _State.TEXT
        yield from ()

    def _shown(self, text: str, rest: str = "") -> Iterator[Event]:
        """It was no call."""
        self._rest, self._mark, self._state = rest, "", _State.TEXT
        self._is_marked = False
        yield Content(text)

    _steps: ClassVar[Mapping[_State, Callable[["CallParser"], Iterator[Event]]]] = {
        _State.START: _start,
        _State.TEXT: _text,
        _State.BEFORE_CALL: _before_call,
        _State.CALL: _call,
        _State.AFTER_CALL: _after_call,
    }


class NamedCall:
    """An answer that is, as a whole, the arguments of one tool."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._has_begun = False

    def feed(self, text: str) -> Iterator[Event]:
        """As of `AnswerParser`."""
        if not self._has_begun:
            self._has_begun = True
            yield CallStart(0, self._name)
        if text:
            yield CallArguments(0, text)

    def end(self) -> Iterator[Event]:
        """As of `AnswerParser`."""
        yield from ()


def held_back(text: str, mark: str) -> int:
    """How many characters at the end of a text may be the beginning of a mark."""
    sizes = range(min(len(mark) - 1, len(text)), 0, -1)
    return next((size for size in sizes if mark.startswith(text[-size:])), 0)
