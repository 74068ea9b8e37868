"""The line at the bottom of the terminal while an answer streams: speed, acceptance, tree size."""

import shutil
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TextIO

if TYPE_CHECKING:
    from canopy_client import Chunk

_REFRESH_S = 0.1
_MIN_ROWS = 3


@dataclass
class Meter:
    """Counts what came; rates are over the time since the first piece."""

    num_tokens: int = 0
    num_rounds: int = 0
    num_nodes: int = 0
    num_accepted: int = 0
    first_s: float | None = None
    last_s: float = 0.0
    _num_first: int = 0

    def add(self, chunk: "Chunk", now_s: float) -> None:
        """One piece; its rounds are there where a trace was asked for."""
        if self.first_s is None:
            self.first_s, self._num_first = now_s, chunk.num_tokens
        self.last_s = now_s
        self.num_tokens += chunk.num_tokens
        self.num_rounds += len(chunk.rounds)
        self.num_nodes += sum(len(drafted["token_ids"]) - 1 for drafted in chunk.rounds)
        self.num_accepted += sum(len(drafted["accepted"]) for drafted in chunk.rounds)

    @property
    def tokens_per_s(self) -> float:
        """0 until a second piece came."""
        elapsed_s = self.last_s - (self.first_s or self.last_s)
        return (self.num_tokens - self._num_first) / elapsed_s if elapsed_s > 0 else 0.0

    def line(self) -> str:
        """For people."""
        parts = [f"{self.num_tokens} tokens"]
        if self.tokens_per_s:
            parts.append(f"{self.tokens_per_s:.1f} tokens/s")
        if self.num_rounds:
            parts.append(f"acceptance length {1 + self.num_accepted / self.num_rounds:.2f}")
            parts.append(f"tree of {self.num_nodes / self.num_rounds:.1f} nodes")
        return " · ".join(parts)


class BottomLine:
    """Keeps the last row of the terminal for itself; the text above scrolls as ever.

    A scroll region leaves the row out, and the cursor is saved around each update: what was
    printed stays in the terminal's history as it is.
    """

    def __init__(self, terminal: TextIO, num_rows: int) -> None:
        self._terminal = terminal
        self._num_rows = num_rows
        self._shown_s = 0.0
        # The newline and the way back up make room when the cursor stands in the last row.
        self._write(f"\n\x1b[1A\x1b7\x1b[1;{num_rows - 1}r\x1b8")

    def show(self, text: str) -> None:
        """Replace the line; more often than people can read, it is left as it is."""
        now_s = time.monotonic()
        if now_s - self._shown_s >= _REFRESH_S:
            self._shown_s = now_s
            self._write(f"\x1b7\x1b[{self._num_rows};1H\x1b[2K\x1b[2m{text}\x1b[0m\x1b8")

    def close(self) -> None:
        """Give the row back, empty."""
        self._write(f"\x1b7\x1b[r\x1b[{self._num_rows};1H\x1b[2K\x1b8")

    def _write(self, text: str) -> None:
        self._terminal.write(text)
        self._terminal.flush()


@contextmanager
def live_line() -> Iterator[Callable[[str], None]]:
    """A function that shows a text in the last row; it does nothing without a terminal."""
    num_rows = shutil.get_terminal_size().lines
    if not is_live() or num_rows < _MIN_ROWS:
        yield lambda text: None
        return
    line = BottomLine(sys.stdout, num_rows)
    try:
        yield line.show
    finally:
        line.close()


def is_live() -> bool:
    """Whether people watch: then a trace of the rounds is worth asking for."""
    return sys.stdout.isatty() and sys.stderr.isatty()


def traced(options: dict[str, Any]) -> dict[str, Any]:
    """The options, with a trace where its numbers are shown."""
    return {**options, "trace": True} if is_live() else options
