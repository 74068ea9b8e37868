"""Progress bars, on standard error so that output can be piped."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any


@contextmanager
def progress_bar(
    what: str, total: int, text: str = "", **fields: Any
) -> Iterator[Callable[..., None]]:
    """Yields `advance(steps=1, **fields)` for a bar of `total` steps.

    text: rich markup behind the bar that shows fields, as "{task.fields[tokens]} tokens".
    """
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )

    texts = (TextColumn(text),) if text else ()
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), *texts)
    times = (TimeElapsedColumn(), TimeRemainingColumn())
    with Progress(*columns, *times, console=Console(stderr=True)) as bars:
        task = bars.add_task(what, total=total, **fields)

        def advance(steps: int = 1, **fields: Any) -> None:
            bars.update(task, advance=steps, **fields)

        yield advance


@contextmanager
def phase_bars(is_bytes: bool = True) -> Iterator[Callable[[str, float, float], None]]:
    """Yields `show(phase, done, total)`, which draws a bar for each phase that it is told of.

    is_bytes: done and total are counts of bytes; total 0 means unknown.
    """
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        DownloadColumn,
        Progress,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )

    counts = (DownloadColumn(), TimeRemainingColumn()) if is_bytes else (TimeElapsedColumn(),)
    columns = (TextColumn("{task.description:>14}"), BarColumn(), *counts)
    with Progress(*columns, console=Console(stderr=True)) as bars:
        tasks: dict[str, Any] = {}

        def show(phase: str, done: float, total: float) -> None:
            if phase not in tasks:
                tasks[phase] = bars.add_task(phase, total=None)
            bars.update(tasks[phase], completed=min(done, total or done), total=total or None)

        yield show
