"""A training from its checkpoint to its end, on a corpus that may still grow, and its picture."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from canopy_training.corpus.corpus import Corpus
from canopy_training.loop.run import OnStep, Progress, TrainingRun

FOLLOW_EVERY = 100  # steps
PICTURE = "training.png"
_LOSSES = {"train_loss": "training", "loss": "held out"}
_TAUS = ("chain_tau", "tree8_tau", "tree16_tau", "marginal16_tau")


def run_to_the_end(
    training: TrainingRun, corpus: Corpus, out: Path, on_step: OnStep, follow: bool
) -> Progress:
    """Train, or go on with the checkpoint in `out`.

    follow: take up the shards that have been completed since, again and again.
    """
    training.resume()

    def after_step(progress: Progress, loss: float) -> None:
        if follow and progress.step % FOLLOW_EVERY == 0:
            training.use(Corpus(corpus.folder))
        on_step(progress, loss)

    training.run(after_step)
    plot_history(training.progress.history, out / PICTURE)
    return training.progress


def plot_history(history: Sequence[dict[str, Any]], path: Path) -> None:
    """Losses and acceptance lengths by step."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 3.6), layout="constrained")
    left, right = figure.subplots(1, 2)
    steps = [record["step"] for record in history]
    for name, label in _LOSSES.items():
        left.plot(steps, [record[name] for record in history], label=label)
    for name in _TAUS:
        if all(name in record for record in history):
            right.plot(steps, [record[name] for record in history], label=name[:-4])
    for axes, label in ((left, "loss, nats"), (right, "acceptance length, held out")):
        axes.set_xlabel("step")
        axes.set_ylabel(label)
        axes.legend()
    figure.savefig(path, dpi=110)
