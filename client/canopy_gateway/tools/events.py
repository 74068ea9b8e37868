"""What the text of an answer turns out to be."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Content:
    """Text for the reader."""

    text: str


@dataclass(frozen=True)
class Reasoning:
    """Text that the model wrote for itself."""

    text: str


@dataclass(frozen=True)
class CallStart:
    """A tool is called; its arguments follow."""

    index: int  # of the call in its answer
    name: str


@dataclass(frozen=True)
class CallArguments:
    """The next piece of a call's arguments, a JSON text."""

    index: int
    text: str


Event = Content | Reasoning | CallStart | CallArguments
