"""The command of `canopy-train` about the small autoregressive drafter."""

import math
from typing import Annotated

import typer

from canopy.config import DEFAULT_MODEL
from canopy_training.loop.progress import training_bar
from canopy_training.options import (
    CorpusFolder,
    Device,
    Follow,
    Minutes,
    Sequences,
    Steps,
    Target,
    Threads,
    TrainingFolder,
    tell,
)


def autoregressive(
    corpus: CorpusFolder,
    out: TrainingFolder,
    model: Target = DEFAULT_MODEL,
    device: Device = "cpu",
    steps: Steps = 4000,
    minutes: Minutes = 0.0,
    layers: Annotated[int, typer.Option(min=1)] = 6,
    hidden_size: Annotated[int, typer.Option(min=64, help="A multiple of 64.")] = 192,
    sequences: Sequences = 16,
    learning_rate: float = 2e-3,
    follow: Follow = False,
    seed: int = 0,
    threads: Threads = 1,
) -> None:
    """Train a small model of the Llama family to draft for its target, token by token.

    Stop it at any time: the next run goes on from the last checkpoint. The folder is one of
    Hugging Face's, and what `drafter.model` names.

    Example: canopy-train autoregressive --corpus corpus --out small --minutes 30
    """
    import torch

    from canopy.model_store.folders import model_folder
    from canopy_training.corpus.corpus import Corpus
    from canopy_training.loop.course import run_to_the_end
    from canopy_training.small_drafter.model import SmallShape, new_small_drafter
    from canopy_training.small_drafter.trainer import SmallSettings, SmallTraining

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
    tell(progress)
