"""From a corpus to a trained drafter in a folder, with the picture of its training."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from canopy.models.block_drafter import BlockDrafter
from canopy.models.block_drafter_files import drafter_config, new_drafter
from canopy.models.config import ModelConfig
from canopy.text.tokenizer import Tokenizer
from canopy_training.corpus import Corpus
from canopy_training.drafter_data import draft_vocabulary, prompt_counts, tap_scales
from canopy_training.drafter_training import DrafterTraining, Progress, TrainingSettings

FOLLOW_EVERY = 100  # steps


@dataclass(frozen=True)
class DrafterPlan:
    """The network of a new drafter."""

    num_layers: int = 2
    draft_vocab_size: int = 16384
    dropout: float = 0.1
    prompts: Path | None = None  # JSON lines that count towards the draft vocabulary


def untrained_drafter(
    corpus: Corpus, target_folder: Path, plan: DrafterPlan, seed: int
) -> BlockDrafter:
    """A drafter of the target that wrote the corpus."""
    vocab_size = ModelConfig.from_folder(target_folder).vocab_size
    size = min(plan.draft_vocab_size, vocab_size)
    counts = np.zeros(vocab_size)
    if plan.prompts is not None:
        counts = prompt_counts(plan.prompts, Tokenizer(target_folder), vocab_size)
    draft_ids = torch.from_numpy(draft_vocabulary(corpus, size, counts))
    scales = torch.from_numpy(tap_scales(corpus))
    config = drafter_config(target_folder, size, corpus.manifest.tap_layers, plan.num_layers)
    torch.manual_seed(seed)
    return new_drafter(target_folder, config, draft_ids, scales, plan.dropout)


def train_drafter(
    corpus: Corpus,
    target_folder: Path,
    out: Path,
    plan: DrafterPlan,
    settings: TrainingSettings,
    device: str,
    on_step: Callable[[Progress, float], None],
    follow: bool = False,
) -> Progress:
    """Train, or go on with the checkpoint in `out`.

    follow: take up the shards that have been completed since, again and again.
    """
    drafter = untrained_drafter(corpus, target_folder, plan, settings.seed)
    training = DrafterTraining(drafter, corpus, out, settings, device)
    training.resume()

    def after_step(progress: Progress, loss: float) -> None:
        if follow and progress.step % FOLLOW_EVERY == 0:
            training.use(Corpus(corpus.folder))
        on_step(progress, loss)

    training.run(after_step)
    plot_history(training.progress.history, out / "training.png")
    return training.progress


def plot_history(history: Sequence[dict[str, Any]], path: Path) -> None:
    """Losses and acceptance lengths by step."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 3.6), layout="constrained")
    left, right = figure.subplots(1, 2)
    steps = [record["step"] for record in history]
    for name in ("train_loss", "loss"):
        label = "held out" if name == "loss" else "training, with dropout"
        left.plot(steps, [record[name] for record in history], label=label)
    for name in ("chain_tau", "tree8_tau", "tree16_tau", "marginal16_tau"):
        right.plot(steps, [record[name] for record in history], label=name.removesuffix("_tau"))
    for axes, label in ((left, "loss, nats"), (right, "acceptance length, held out")):
        axes.set_xlabel("step")
        axes.set_ylabel(label)
        axes.legend()
    figure.savefig(path, dpi=110)
