"""The commands of `canopy-train` about the block drafter."""

import math
from pathlib import Path
from typing import Annotated

import typer

from canopy.config import DEFAULT_MODEL
from canopy_training.loop.progress import training_bar
from canopy_training.options import (
    CorpusFolder,
    Device,
    DrafterFolder,
    Follow,
    Minutes,
    ReliabilityPlot,
    Sequences,
    Steps,
    Target,
    Threads,
    TrainingFolder,
    tell,
)


def drafter(
    corpus: CorpusFolder,
    out: TrainingFolder,
    prompts: Annotated[
        Path | None, typer.Option(exists=True, help="More text for the choice of the vocabulary.")
    ] = None,
    model: Target = DEFAULT_MODEL,
    device: Device = "cpu",
    steps: Steps = 4000,
    minutes: Minutes = 0.0,
    layers: Annotated[int, typer.Option(min=1, max=4)] = 2,
    vocabulary: Annotated[int, typer.Option(min=1, help="Draft vocabulary.")] = 16384,
    sequences: Sequences = 8,
    learning_rate: float = 5e-4,
    follow: Follow = False,
    seed: int = 0,
    threads: Threads = 1,
) -> None:
    """Train a block drafter on a corpus of its target's answers.

    Stop it at any time: the next run goes on from the last checkpoint.

    Example: canopy-train drafter --corpus corpus --out drafter --minutes 30
    """
    import torch

    from canopy.model_store.folders import model_folder
    from canopy_training.block_drafter.builder import DrafterPlan, train_drafter
    from canopy_training.block_drafter.trainer import TrainingSettings
    from canopy_training.corpus.corpus import Corpus

    torch.set_num_threads(threads)
    settings = TrainingSettings(
        steps=steps,
        minutes=minutes or math.inf,
        sequences=sequences,
        learning_rate=learning_rate,
        seed=seed,
    )
    plan = DrafterPlan(layers, vocabulary, prompts=prompts)
    with training_bar(steps) as on_step:
        progress = train_drafter(
            Corpus(corpus), model_folder(model), out, plan, settings, device, on_step, follow
        )
    tell(progress)


def export(
    drafter: DrafterFolder,
    out: Annotated[Path | None, typer.Option(help="Folder; the drafter's own by default.")] = None,
    model: Target = DEFAULT_MODEL,
    int8: Annotated[bool, typer.Option(help="Matrix products in int8.")] = True,
) -> None:
    """Write a drafter as ONNX graphs, which the draft stage runs on the CPU.

    Example: canopy-train export --drafter drafter
    """
    import shutil

    from canopy.model_store.folders import model_folder
    from canopy.models.block_drafter.checkpoint import (
        CONFIG_FILE,
        SURVIVAL_FILE,
        WEIGHTS_FILE,
        load_drafter,
        write_drafter_manifest,
    )
    from canopy_training.block_drafter.export import export_drafter

    export_drafter(load_drafter(drafter, model_folder(model)), out or drafter, int8)
    for name in (CONFIG_FILE, WEIGHTS_FILE, SURVIVAL_FILE):
        if out and (drafter / name).is_file():
            shutil.copy(drafter / name, out / name)
    if out:
        write_drafter_manifest(out)
    typer.echo(f"exported to {out or drafter}")


def mix(
    drafter: DrafterFolder,
    corpus: CorpusFolder,
    ngrams: Annotated[str, typer.Option(help="Lookup's store, as drafter.ngrams.")] = "default",
    model: Target = DEFAULT_MODEL,
    candidates: Annotated[int, typer.Option(min=1, help="As drafter.num_candidates.")] = 512,
    max_match: Annotated[int, typer.Option(min=1, max=8, help="As drafter.max_match.")] = 8,
    plot: ReliabilityPlot = None,
    threads: Threads = 1,
) -> None:
    """Weigh a drafter's candidates and lookup's together, for the source "all".

    Example: canopy-train mix --drafter drafter --corpus corpus
    """
    import torch

    from canopy.drafter.block.combined_weights import save_combined_weights
    from canopy.drafter.lookup.ngram_store import NgramStore
    from canopy.model_store.assets import ngram_store_path
    from canopy.model_store.folders import model_folder
    from canopy.model_store.vocabulary import vocabulary_digest
    from canopy.models.block_drafter.checkpoint import load_drafter
    from canopy_training.block_drafter.combined_weights import drafting_with
    from canopy_training.corpus.corpus import Corpus
    from canopy_training.lookup.reliability import reliability_table, write_plot
    from canopy_training.lookup.survival import fit_and_check

    torch.set_num_threads(threads)
    target, path = model_folder(model), ngram_store_path(ngrams)
    store = NgramStore.open(path, vocabulary_digest(target)) if path else NgramStore.empty()
    drafting = drafting_with(load_drafter(drafter, target), candidates)
    check, weights = fit_and_check(Corpus(corpus), store.ngrams, max_match, drafting)
    save_combined_weights(weights, drafter)
    typer.echo(reliability_table(check))
    if plot:
        write_plot(check, plot)
        typer.echo(plot)
