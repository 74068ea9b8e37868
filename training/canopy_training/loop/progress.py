"""The progress bar of a training, on standard error."""

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from canopy.progress import progress_bar

if TYPE_CHECKING:
    from canopy_training.loop.run import Progress


@contextmanager
def training_bar(total: int) -> "Iterator[Callable[[Progress, float], None]]":
    """Shows steps, the loss of a step, and the last evaluation."""
    text = "loss {task.fields[loss]:.3f}, tree of 16 {task.fields[tau]:.3f}"
    num_done = 0
    with progress_bar("steps", total, text, loss=math.nan, tau=math.nan) as advance:

        def on_step(progress: "Progress", loss: float) -> None:
            nonlocal num_done
            tau = progress.history[-1]["tree16_tau"] if progress.history else math.nan
            advance(progress.step - num_done, loss=loss, tau=tau)
            num_done = progress.step

        yield on_step
