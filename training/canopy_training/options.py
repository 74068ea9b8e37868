"""What several commands of `canopy-train` share: options, and the words at a training's end."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from canopy_training.loop.run import Progress

Target = Annotated[str, typer.Option(help="Name or folder of the target.")]
CorpusFolder = Annotated[Path, typer.Option(exists=True, help="What `canopy-train corpus` made.")]
DrafterFolder = Annotated[Path, typer.Option(exists=True, help="What `canopy-train drafter` made.")]
TrainingFolder = Annotated[
    Path, typer.Option(help="Folder; one with a checkpoint is gone on with.")
]
Device = Annotated[str, typer.Option(help="cpu or cuda")]
Steps = Annotated[int, typer.Option(min=1)]
Minutes = Annotated[float, typer.Option(help="0: until the steps are done.")]
Sequences = Annotated[int, typer.Option(min=1, help="Of a step.")]
Follow = Annotated[bool, typer.Option(help="Take up a corpus that still grows.")]
Threads = Annotated[int, typer.Option(min=1)]
ReliabilityPlot = Annotated[Path | None, typer.Option(help="Draw the reliability into this SVG.")]


def tell(progress: "Progress") -> None:
    """Print where a training ended."""
    last = progress.history[-1] if progress.history else {}
    typer.echo(f"{progress.step} steps, {progress.seconds:.0f} s: {last}")
