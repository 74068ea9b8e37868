"""What the benchmarks of peers ask of a program under test: arms that answer, and their cost."""

import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from bench.harness.benchmark import Record


class CannotRun(Exception):
    """A peer that is not measured; the text is the reason, for the report."""


@dataclass(frozen=True)
class ChatPrompt:
    """One user turn, and what the model's own template makes of it."""

    text: str
    token_ids: tuple[int, ...]


@dataclass(frozen=True)
class Answer:
    """Times of one request, from the moment it is sent."""

    first_token_s: float
    total_s: float
    num_tokens: int


@dataclass(frozen=True)
class Arm:
    """One way of one program to answer.

    `answer` takes prompts that are sent at once and the tokens of each answer, which is greedy
    and cannot end early; it raises CannotRun.
    """

    name: str
    answer: Callable[[Sequence[ChatPrompt], int], list[Answer]]
    process_group: int
    max_concurrency: int = 1 << 30


def answer_at_once(
    prompts: Sequence[ChatPrompt], answer: Callable[[ChatPrompt], Answer]
) -> list[Answer]:
    """Every prompt on a thread of its own."""
    with ThreadPoolExecutor(len(prompts)) as pool:
        return list(pool.map(answer, prompts))


class Stopwatch:
    """Times one answer; started by its making."""

    def __init__(self) -> None:
        self._start = time.perf_counter()
        self._first_s: float | None = None

    def token(self) -> None:
        """A token came; the first one counts."""
        if self._first_s is None:
            self._first_s = time.perf_counter() - self._start

    def answer(self, num_tokens: int) -> Answer:
        """The answer ends now. Raises CannotRun when no token came."""
        if self._first_s is None:
            raise CannotRun("an answer ended without a token")
        return Answer(self._first_s, time.perf_counter() - self._start, num_tokens)


def not_measured(reasons: dict[str, str]) -> list[Record]:
    """The table of what cannot run."""
    return [{"arm": name, "reason": reason} for name, reason in reasons.items()]
