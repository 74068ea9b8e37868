"""Trains a block drafter."""

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from canopy.models.block_drafter.checkpoint import save_drafter
from canopy.models.block_drafter.network import BlockDrafter
from canopy_training.block_drafter.copy_bonus import fit_copy_bonus
from canopy_training.block_drafter.data import Batches
from canopy_training.block_drafter.evaluation import evaluate
from canopy_training.block_drafter.loss import distillation_loss
from canopy_training.corpus.corpus import Answer
from canopy_training.loop.run import Schedule, TrainingRun

_FASTER = (  # start from nothing
    *("fuse", "inject", "masks", "copy", "match_lengths"),
    *("adapter", "markov_in", "markov_out", "markov_row", "markov_step"),
)


@dataclass(frozen=True)
class TrainingSettings(Schedule):
    """New parts learn twice as fast as copied ones."""

    anchors: int = 32  # of a sequence
    row_decay: float = 0.4  # row k is trained with probability exp(-row_decay * k)
    candidates: int = 512
    copy_answers: int = 128  # on which the copy bonus is fitted


class DrafterTraining(TrainingRun):
    """`TrainingRun` of a block drafter."""

    def __init__(
        self,
        drafter: BlockDrafter,
        answers: Sequence[Answer],
        folder: Path,
        settings: TrainingSettings,
        device: str = "cpu",
    ) -> None:
        self._drafter = drafter.to(device)
        self._settings = settings
        self.resumed()
        super().__init__(drafter, _groups(drafter, settings), answers, folder, settings, device)

    def resumed(self) -> None:
        """The vocabulary is that of the checkpoint: the corpus may have grown since."""
        config, ids = self._drafter.config, self._drafter.draft_ids.cpu().numpy()
        self._batches = Batches(ids, config.target_vocab_size, config.block_size)
        self._head = self._drafter.head().to(torch.bfloat16)

    def step_loss(self, answers: Sequence[Answer], generator: np.random.Generator) -> torch.Tensor:
        """See `drafter_loss`."""
        settings = self._settings
        batch = self._batches.of(answers, settings.anchors, generator, settings.row_decay)
        return distillation_loss(self._drafter, batch.to(self._device), self._head)

    def evaluation(self, held_out: Sequence[Answer]) -> dict[str, Any]:
        """See `drafter_evaluation`; what copying is worth follows the network."""
        settings = self._settings
        numbers = self._train[: settings.copy_answers]
        fit_copy_bonus(self._drafter, [self._answers[i] for i in numbers], self._batches)
        return dataclasses.asdict(
            evaluate(self._drafter, held_out, 8, settings.candidates, settings.seed)
        )

    def save(self) -> None:
        """As the draft stage loads it."""
        save_drafter(self._drafter, self._folder)


def _groups(drafter: BlockDrafter, settings: TrainingSettings) -> list[dict[str, Any]]:
    named = list(drafter.named_parameters())
    fast = [p for name, p in named if name.split(".")[0] in _FASTER]
    slow = [p for name, p in named if name.split(".")[0] not in _FASTER]
    rates = (2.0 * settings.learning_rate, settings.learning_rate)
    return [
        {"params": params, "full_rate": rate, "lr": rate}
        for params, rate in zip((fast, slow), rates, strict=True)
    ]
