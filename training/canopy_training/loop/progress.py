"""The progress bar of a training, on standard error."""

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from canopy_training.loop.run import Progress


@contextmanager
def training_bar(total: int) -> "Iterator[Callable[[Progress, float], None]]":
    """Shows steps, the loss of a step, and the last evaluation."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn
    from rich.progress import Progress as Bar

    columns = (
        TextColumn("steps"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("loss {task.fields[loss]:.3f}, tree of 16 {task.fields[tau]:.3f}"),
        TimeElapsedColumn(),
    )
    with Bar(*columns, console=Console(stderr=True)) as bar:
        task = bar.add_task("steps", total=total, loss=math.nan, tau=math.nan)

        def on_step(progress: "Progress", loss: float) -> None:
            tau = progress.history[-1]["tree16_tau"] if progress.history else math.nan
            bar.update(task, completed=progress.step, loss=loss, tau=tau)

        yield on_step
