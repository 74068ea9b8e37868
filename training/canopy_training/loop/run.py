"""One training in one folder: warm-up and cosine, checkpoints, resume, evaluation, early stop.

Everything random in step i follows from the seed and i, so a training that was killed and resumed
on the same corpus gives the weights of one that was not, unless minutes end it.
"""

import dataclasses
import json
import logging
import math
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from canopy_training.block_drafter.data import is_held_out
from canopy_training.corpus.corpus import Answer

logger = logging.getLogger(__name__)

CHECKPOINT = "checkpoint.pt"
HISTORY = "history.json"


@dataclass(frozen=True)
class Schedule:
    """How long, how fast, how often."""

    steps: int = 4000
    minutes: float = math.inf  # whichever ends first; the learning rate falls towards it
    sequences: int = 8  # of a step
    learning_rate: float = 5e-4
    weight_decay: float = 0.05
    warm_up_steps: int = 40
    evaluate_every: int = 500
    checkpoint_every: int = 100
    held_out: int = 48  # answers
    patience: int = 6  # evaluations without a better loss
    seed: int = 0


@dataclass
class Progress:
    """Where a training stands."""

    step: int = 0
    seconds: float = 0.0
    best_loss: float = math.inf
    num_worse: int = 0
    history: list[dict[str, Any]] = dataclasses.field(default_factory=list)


OnStep = Callable[[Progress, float], None]  # hears of every step and its loss


def _ignore(progress: Progress, loss: float) -> None:
    """Default progress callback: ignores what it is told."""


class TrainingRun(ABC):
    """The best model so far lies in the folder too; what is trained is for subclasses to say."""

    def __init__(
        self,
        model: torch.nn.Module,
        groups: list[dict[str, Any]],
        answers: Sequence[Answer],
        folder: Path,
        schedule: Schedule,
        device: str,
    ) -> None:
        """groups: of parameters, each with its `full_rate`. The model is on the device."""
        self._model = model
        self._folder = folder
        self._schedule = schedule
        self._device = device
        self.use(answers)
        self._optimizer = torch.optim.AdamW(
            groups, betas=(0.9, 0.98), weight_decay=schedule.weight_decay
        )
        self.progress = Progress()
        folder.mkdir(parents=True, exist_ok=True)

    # What a kind of training is

    @abstractmethod
    def step_loss(self, answers: Sequence[Answer], generator: np.random.Generator) -> torch.Tensor:
        """The loss of a step, with its graph; under autocast, the model in training mode."""

    @abstractmethod
    def evaluation(self, held_out: Sequence[Answer]) -> dict[str, Any]:
        """What the curve shows; its `loss` tells which model is the best."""

    @abstractmethod
    def save(self) -> None:
        """Leave the model in the folder, as the best so far."""

    def resumed(self) -> None:  # noqa: B027 - most need nothing
        """The model's tensors are those of a checkpoint now."""

    # The run

    def use(self, answers: Sequence[Answer]) -> None:
        """Train on these from the next step on, and evaluate on the held-out ones among them."""
        usable = [i for i, answer in enumerate(answers) if len(answer.hidden_states) > 1]
        self._answers = answers
        self._train = [i for i in usable if not is_held_out(answers[i].number)]
        held_out = [i for i in usable if is_held_out(answers[i].number)]
        self._held_out = [answers[i] for i in held_out[: self._schedule.held_out]]

    def resume(self) -> bool:
        """Go on from the folder's checkpoint, if there is one."""
        path = self._folder / CHECKPOINT
        if not path.is_file():
            return False
        state = torch.load(path, map_location=self._device, weights_only=True)
        self._model.load_state_dict(state["drafter"])
        self._optimizer.load_state_dict(state["optimizer"])
        self.progress = Progress(**state["progress"])
        self.resumed()
        return True

    def run(self, on_step: OnStep = _ignore) -> None:
        """Train to the end."""
        schedule, progress, losses = self._schedule, self.progress, list[float]()
        while self._fraction() < 1.0 and progress.num_worse < schedule.patience:
            started = time.monotonic()
            losses.append(self._step())
            progress.step += 1
            progress.seconds += time.monotonic() - started
            on_step(progress, losses[-1])
            if progress.step % schedule.evaluate_every == 0 or self._fraction() >= 1.0:
                self._evaluate(float(np.mean(losses)))
                losses.clear()
            if progress.step % schedule.checkpoint_every == 0:
                self._save_checkpoint()
        self._save_checkpoint()

    def _fraction(self) -> float:
        """Of the training that is done."""
        progress, schedule = self.progress, self._schedule
        return max(progress.step / schedule.steps, progress.seconds / 60.0 / schedule.minutes)

    def _rate(self) -> float:
        """Of the full learning rate."""
        warm = min(1.0, (self.progress.step + 1) / max(self._schedule.warm_up_steps, 1))
        return warm * 0.5 * (1.0 + math.cos(math.pi * min(self._fraction(), 1.0)))

    def _step(self) -> float:
        schedule, step = self._schedule, self.progress.step
        generator = np.random.default_rng((schedule.seed, step))
        torch.manual_seed(schedule.seed * 1_000_003 + step)
        chosen = generator.choice(self._train, schedule.sequences)
        answers = [self._answers[int(index)] for index in chosen]
        self._model.train()
        for group in self._optimizer.param_groups:
            group["lr"] = group["full_rate"] * self._rate()
        with torch.autocast(self._device, torch.bfloat16):
            loss = self.step_loss(answers, generator)
        self._optimizer.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self._model.parameters(), 1.0)
        self._optimizer.step()
        return float(loss.detach())

    def _evaluate(self, train_loss: float) -> None:
        progress = self.progress
        result = self.evaluation(self._held_out)
        record = {"step": progress.step, "seconds": progress.seconds, "train_loss": train_loss}
        progress.history.append({**record, **result})
        logger.info("%s", progress.history[-1])
        (self._folder / HISTORY).write_text(json.dumps(progress.history, indent=1) + "\n", "utf-8")
        if result["loss"] < progress.best_loss:
            progress.best_loss, progress.num_worse = result["loss"], 0
            self.save()
        else:
            progress.num_worse += 1

    def _save_checkpoint(self) -> None:
        partial = self._folder / f"{CHECKPOINT}.partial"
        state = {
            "drafter": self._model.state_dict(),
            "optimizer": self._optimizer.state_dict(),
            "progress": dataclasses.asdict(self.progress),
        }
        torch.save(state, partial)
        partial.replace(self._folder / CHECKPOINT)
