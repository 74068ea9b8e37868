"""What the text of an answer turns out to be."""

import secrets
import string
from dataclasses import dataclass

_ID_LETTERS = string.ascii_letters + string.digits
_ID_LENGTH = 9  # all that the template of Mistral's models takes


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


def new_call_id() -> str:
    """What ties the result of a call to it."""
    return "".join(secrets.choice(_ID_LETTERS) for _ in range(_ID_LENGTH))
