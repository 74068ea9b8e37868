"""Reasoning that stands between <think> and </think> before an answer."""

from collections.abc import Iterator

from canopy_gateway.tools.events import Content, Event, Reasoning
from canopy_gateway.tools.formats import AnswerParser, held_back

_OPENING, _CLOSING = "<think>", "</think>"


class ReasoningParser:
    """Tells reasoning from what follows it, which `answer` reads."""

    def __init__(self, answer: AnswerParser, is_open: bool) -> None:
        """is_open: the prompt has opened it already; the answer may do so once more."""
        self._answer = answer
        self._is_open = is_open
        self._is_opening = True  # no more than whitespace or a part of the mark came
        self._is_over = False
        self._is_trimming = False  # no more than whitespace came behind it
        self._rest = ""

    def feed(self, text: str) -> Iterator[Event]:
        """As of `AnswerParser`."""
        if self._is_over:
            yield from self._pass_on(text)
            return
        self._rest += text
        if self._is_opening:
            yield from self._look_for_opening()
        if self._is_open and not self._is_opening:
            yield from self._look_for_closing()

    def _pass_on(self, text: str) -> Iterator[Event]:
        text = text.lstrip() if self._is_trimming else text
        self._is_trimming &= not text
        yield from self._answer.feed(text)

    def end(self) -> Iterator[Event]:
        """As of `AnswerParser`."""
        if self._rest:
            yield Reasoning(self._rest) if self._is_open else Content(self._rest)
        yield from self._answer.end()

    def _look_for_opening(self) -> Iterator[Event]:
        stripped = self._rest.lstrip()
        self._is_opening = stripped != _OPENING and _OPENING.startswith(stripped)
        if stripped.startswith(_OPENING):
            self._is_open, self._rest = True, stripped.removeprefix(_OPENING)
        elif not self._is_opening and not self._is_open:
            rest, self._rest, self._is_over = self._rest, "", True
            yield from self._answer.feed(rest)

    def _look_for_closing(self) -> Iterator[Event]:
        before, mark, after = self._rest.partition(_CLOSING)
        if mark:
            self._is_open, self._is_over, self._rest = False, True, ""
            if before:
                yield Reasoning(before)
            self._is_trimming = True
            yield from self._pass_on(after)
            return
        kept = len(self._rest) - held_back(self._rest, _CLOSING)
        if kept:
            yield Reasoning(self._rest[:kept])
        self._rest = self._rest[kept:]


class PlainAnswer:
    """An answer that is content alone."""

    def feed(self, text: str) -> Iterator[Event]:
        """As of `AnswerParser`."""
        if text:
            yield Content(text)

    def end(self) -> Iterator[Event]:
        """As of `AnswerParser`."""
        yield from ()
