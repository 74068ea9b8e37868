"""Trains a block drafter: warm-up and cosine, checkpoints, resume, evaluation, early stop.

Everything random in step i follows from the seed and i, so a training that was killed and resumed
on the same corpus gives the weights of one that was not, unless minutes end it.
"""

import dataclasses
import json
import logging
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from canopy.models.block_drafter import BlockDrafter
from canopy.models.block_drafter_files import save_drafter
from canopy_training.corpus import Answer
from canopy_training.drafter_data import Batches, is_held_out
from canopy_training.drafter_evaluation import evaluate
from canopy_training.drafter_loss import distillation_loss

logger = logging.getLogger(__name__)

CHECKPOINT = "checkpoint.pt"
HISTORY = "history.json"
_FASTER = ("fuse", "inject", "masks", "adapter", "markov_in", "markov_out")  # start from nothing


@dataclass(frozen=True)
class TrainingSettings:
    """How long, how fast, how often."""

    steps: int = 4000
    minutes: float = math.inf  # whichever ends first; the learning rate falls towards it
    sequences: int = 8  # of a step
    anchors: int = 32  # of a sequence
    learning_rate: float = 5e-4  # new parts learn twice as fast as copied ones
    weight_decay: float = 0.05
    warm_up_steps: int = 40
    row_decay: float = 0.5  # row k is trained with probability exp(-row_decay * k)
    evaluate_every: int = 250
    checkpoint_every: int = 100
    held_out: int = 48  # answers
    patience: int = 6  # evaluations without a better loss
    candidates: int = 512
    seed: int = 0


@dataclass
class Progress:
    """Where a training stands."""

    step: int = 0
    seconds: float = 0.0
    best_loss: float = math.inf
    num_worse: int = 0
    history: list[dict[str, Any]] = dataclasses.field(default_factory=list)


class DrafterTraining:
    """One training in one folder; the best drafter so far lies there too."""

    def __init__(
        self,
        drafter: BlockDrafter,
        answers: Sequence[Answer],
        folder: Path,
        settings: TrainingSettings,
        device: str = "cpu",
    ) -> None:
        self._drafter = drafter.to(device)
        self._folder = folder
        self._settings = settings
        self._device = device
        self.use(answers)
        self._use_vocabulary()
        self._optimizer = torch.optim.AdamW(
            _groups(drafter, settings), betas=(0.9, 0.98), weight_decay=settings.weight_decay
        )
        self.progress = Progress()
        folder.mkdir(parents=True, exist_ok=True)

    def use(self, answers: Sequence[Answer]) -> None:
        """Train on these from the next step on, and evaluate on the held-out ones among them."""
        usable = [i for i, answer in enumerate(answers) if len(answer.features) > 1]
        self._answers = answers
        self._train = [i for i in usable if not is_held_out(answers[i].number)]
        held_out = [i for i in usable if is_held_out(answers[i].number)]
        self._held_out = [answers[i] for i in held_out[: self._settings.held_out]]

    def resume(self) -> bool:
        """Go on from the folder's checkpoint, if there is one."""
        path = self._folder / CHECKPOINT
        if not path.is_file():
            return False
        state = torch.load(path, map_location=self._device, weights_only=True)
        self._drafter.load_state_dict(state["drafter"])
        self._optimizer.load_state_dict(state["optimizer"])
        self.progress = Progress(**state["progress"])
        self._use_vocabulary()  # that of the checkpoint: the corpus may have grown since
        return True

    def _use_vocabulary(self) -> None:
        config, ids = self._drafter.config, self._drafter.draft_ids.cpu().numpy()
        self._batches = Batches(ids, config.target_vocab_size, config.block_size)
        self._head = self._drafter.head().to(torch.bfloat16)

    def run(self, on_step: Callable[[Progress, float], None] = lambda progress, loss: None) -> None:
        """Train to the end; `on_step` hears of every step and its loss."""
        settings, progress, losses = self._settings, self.progress, list[float]()
        while self._fraction() < 1.0 and progress.num_worse < settings.patience:
            started = time.monotonic()
            losses.append(self._step())
            progress.step += 1
            progress.seconds += time.monotonic() - started
            on_step(progress, losses[-1])
            if progress.step % settings.evaluate_every == 0 or self._fraction() >= 1.0:
                self._evaluate(float(np.mean(losses)))
                losses.clear()
            if progress.step % settings.checkpoint_every == 0:
                self._save_checkpoint()
        self._save_checkpoint()

    def _fraction(self) -> float:
        """Of the training that is done."""
        progress, settings = self.progress, self._settings
        return max(progress.step / settings.steps, progress.seconds / 60.0 / settings.minutes)

    def _rate(self) -> float:
        """Of the full learning rate."""
        warm = min(1.0, (self.progress.step + 1) / max(self._settings.warm_up_steps, 1))
        return warm * 0.5 * (1.0 + math.cos(math.pi * min(self._fraction(), 1.0)))

    def _step(self) -> float:
        settings, step = self._settings, self.progress.step
        generator = np.random.default_rng((settings.seed, step))
        torch.manual_seed(settings.seed * 1_000_003 + step)
        chosen = generator.choice(self._train, settings.sequences)
        answers = [self._answers[int(index)] for index in chosen]
        batch = self._batches.of(answers, settings.anchors, generator, settings.row_decay)
        self._drafter.train()
        for group in self._optimizer.param_groups:
            group["lr"] = group["full_rate"] * self._rate()
        with torch.autocast(self._device, torch.bfloat16):
            loss = distillation_loss(self._drafter, batch.to(self._device), self._head)
        self._optimizer.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self._drafter.parameters(), 1.0)
        self._optimizer.step()
        return float(loss.detach())

    def _evaluate(self, train_loss: float) -> None:
        progress, settings = self.progress, self._settings
        result = evaluate(self._drafter, self._held_out, 8, settings.candidates, settings.seed)
        record = {"step": progress.step, "seconds": progress.seconds, "train_loss": train_loss}
        progress.history.append({**record, **dataclasses.asdict(result)})
        logger.info("%s", progress.history[-1])
        (self._folder / HISTORY).write_text(json.dumps(progress.history, indent=1) + "\n", "utf-8")
        if result.loss < progress.best_loss:
            progress.best_loss, progress.num_worse = result.loss, 0
            save_drafter(self._drafter, self._folder)
        else:
            progress.num_worse += 1

    def _save_checkpoint(self) -> None:
        partial = self._folder / f"{CHECKPOINT}.partial"
        state = {
            "drafter": self._drafter.state_dict(),
            "optimizer": self._optimizer.state_dict(),
            "progress": dataclasses.asdict(self.progress),
        }
        torch.save(state, partial)
        partial.replace(self._folder / CHECKPOINT)


def _groups(drafter: BlockDrafter, settings: TrainingSettings) -> list[dict[str, Any]]:
    named = list(drafter.named_parameters())
    fast = [p for name, p in named if name.split(".")[0] in _FASTER]
    slow = [p for name, p in named if name.split(".")[0] not in _FASTER]
    rates = (2.0 * settings.learning_rate, settings.learning_rate)
    return [
        {"params": params, "full_rate": rate, "lr": rate}
        for params, rate in zip((fast, slow), rates, strict=True)
    ]
