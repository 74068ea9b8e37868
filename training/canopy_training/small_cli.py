"""The command of `canopy-train` about the small autoregressive drafter."""

import math
from pathlib import Path
from typing import Annotated

import typer

from canopy_training.training_bar import training_bar


def autoregressive(
    corpus: Annotated[Path, typer.Option(exists=True, help="What `canopy-train corpus` made.")],
    out: Annotated[Path, typer.Option(help="Folder; one with a checkpoint is gone on with.")],
    model: Annotated[
        str, typer.Option(help="Name or folder of the target.")
    ] = "smollm2-135m-instruct",
    device: Annotated[str, typer.Option(help="cpu or cuda")] = "cpu",
    steps: Annotated[int, typer.Option(min=1)] = 4000,
    minutes: Annotated[float, typer.Option(help="0: until the steps are done.")] = 0.0,
    layers: Annotated[int, typer.Option(min=1)] = 6,
    hidden_size: Annotated[int, typer.Option(min=64, help="A multiple of 64.")] = 192,
    sequences: Annotated[int, typer.Option(min=1, help="Of a step.")] = 16,
    learning_rate: float = 2e-3,
    follow: Annotated[bool, typer.Option(help="Take up a corpus that still grows.")] = False,
    seed: int = 0,
    threads: Annotated[int, typer.Option(min=1)] = 1,
) -> None:
    """Train a small model of the Llama family to draft for its target, token by token.

    Stop it at any time: the next run goes on from the last checkpoint. The folder is one of
    Hugging Face's, and what `drafter.model` names.

    Example: canopy-train autoregressive --corpus corpus --out small --minutes 30
    """
    import torch

    from canopy.serve.models import model_folder
    from canopy_training.corpus import Corpus
    from canopy_training.small_drafter import SmallShape, new_small_drafter
    from canopy_training.small_training import SmallSettings, SmallTraining
    from canopy_training.training_course import run_to_the_end

    if hidden_size % SmallShape.head_dim:
        raise typer.BadParameter(f"--hidden-size must be a multiple of {SmallShape.head_dim}")
    torch.set_num_threads(threads)
    settings = SmallSettings(
        steps=steps,
        minutes=minutes or math.inf,
        sequences=sequences,
        learning_rate=learning_rate,
        seed=seed,
    )
    target, answers = model_folder(model), Corpus(corpus)
    shape = SmallShape(hidden_size=hidden_size, num_layers=layers)
    network = new_small_drafter(target, shape, seed)
    training = SmallTraining(network, target, answers, out, settings, device)
    with training_bar(steps) as on_step:
        progress = run_to_the_end(training, answers, out, on_step, follow)
    last = progress.history[-1] if progress.history else {}
    typer.echo(f"{progress.step} steps, {progress.seconds:.0f} s: {last}")
