"""Types of command-line arguments that several benchmarks share."""

import argparse
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


def positive(text: str) -> int:
    """An integer of at least 1."""
    number = int(text)
    if number < 1:
        raise ValueError
    return number


def listed(kind: Callable[[str], T]) -> Callable[[str], list[T]]:
    """Values with commas between them."""

    def parse(text: str) -> list[T]:
        try:
            return [kind(part.strip()) for part in text.split(",")]
        except ValueError:
            raise argparse.ArgumentTypeError(f"cannot read {text!r}") from None

    return parse


def one_of(choices: tuple[str, ...]) -> Callable[[str], str]:
    """One of several names."""

    def parse(text: str) -> str:
        if text not in choices:
            raise argparse.ArgumentTypeError(f"{text!r}: choose from {', '.join(choices)}")
        return text

    return parse
