"""Trains a small autoregressive drafter on the target's answers.

    loss = (1 - w) * cross entropy with the target's top-k distribution
           + w * cross entropy with its most probable token        w = ARGMAX_LOSS_WEIGHT

at every token of an answer. The sum over the vocabulary is taken over the tokens that answers use
most, those asked for in this step, and a sample of all others that is weighed up to their number;
so its mean over samples is the whole sum, at a fraction of the time.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812

from canopy_training.block_drafter.loss import ARGMAX_LOSS_WEIGHT
from canopy_training.corpus.corpus import Answer
from canopy_training.loop.run import Schedule, TrainingRun
from canopy_training.small_drafter.evaluation import evaluate_small
from canopy_training.small_drafter.model import save_small_drafter

MAX_PROMPT_TOKENS = 128  # the last ones, of a training sequence


@dataclass(frozen=True)
class SmallSettings(Schedule):
    """Of a network that starts from next to nothing."""

    sequences: int = 16
    learning_rate: float = 2e-3
    warm_up_steps: int = 100
    held_out: int = 32
    frequent: int = 8192  # tokens that every step scores
    sampled: int = 1024  # of the other ones


@dataclass(frozen=True)
class SmallBatch:
    """S sequences of L tokens, padded at the end; R answer tokens, T labels each."""

    token_ids: torch.Tensor  # int64 [S, L]
    rows: torch.Tensor  # int64 [R] flat indices into [S, L]: where an answer token is predicted
    label_ids: torch.Tensor  # int64 [R, T] best first
    label_probs: torch.Tensor  # float32 [R, T]


def small_batch(answers: Sequence[Answer]) -> SmallBatch:
    """What a drafter reads and is asked for in one step."""
    prompts = [answer.prompt_ids[-MAX_PROMPT_TOKENS:] for answer in answers]
    # The last answer token predicts nothing.
    texts = [np.concatenate([p, a.answer_ids[:-1]]) for p, a in zip(prompts, answers, strict=True)]
    length = max(map(len, texts))
    token_ids = np.stack([np.pad(text, (0, length - len(text))) for text in texts])
    rows = [
        index * length + np.arange(len(prompt) - 1, len(text))
        for index, (prompt, text) in enumerate(zip(prompts, texts, strict=True))
    ]
    probs = np.exp(np.concatenate([answer.top_log_probs for answer in answers]).astype(np.float32))
    return SmallBatch(
        torch.from_numpy(token_ids.astype(np.int64)),
        torch.from_numpy(np.concatenate(rows)),
        torch.from_numpy(np.concatenate([answer.top_ids for answer in answers]).astype(np.int64)),
        torch.from_numpy(probs),
    )


@dataclass(frozen=True)
class Scored:
    """The tokens that a step scores, and how many each stands for."""

    token_ids: torch.Tensor  # int64 [C], distinct
    log_weights: torch.Tensor  # float32 [C]
    columns: torch.Tensor  # int64 [V] of a token; C where it is not scored

    @staticmethod
    def draw(
        always: np.ndarray, wanted: np.ndarray, vocab_size: int, num: int, rng: np.random.Generator
    ) -> "Scored":
        """always, wanted: token ids that stand for themselves. num: drawn of the others."""
        is_whole = np.zeros(vocab_size, bool)
        is_whole[always] = is_whole[wanted] = True
        own, others = np.flatnonzero(is_whole), np.flatnonzero(~is_whole)
        drawn = rng.choice(others, min(num, len(others)), replace=False)
        token_ids = np.concatenate([own, drawn])
        weights = np.zeros(len(token_ids), np.float32)
        weights[len(own) :] = np.log(max(len(others), 1) / max(len(drawn), 1))
        columns = np.full(vocab_size, len(token_ids))
        columns[token_ids] = np.arange(len(token_ids))
        return Scored(*map(torch.from_numpy, (token_ids, weights, columns)))


def small_loss(model: Any, batch: SmallBatch, scored: Scored) -> torch.Tensor:
    """Mean over the rows; every label is scored."""
    hidden = model.model(input_ids=batch.token_ids, use_cache=False).last_hidden_state
    rows = hidden.flatten(0, 1)[batch.rows]
    logits = F.linear(rows, model.model.embed_tokens.weight[scored.token_ids]).float()
    total = (logits + scored.log_weights).logsumexp(dim=1, keepdim=True)
    log_probs = logits.gather(1, scored.columns[batch.label_ids]) - total
    soft = -(batch.label_probs * log_probs).sum(dim=1)
    return ((1.0 - ARGMAX_LOSS_WEIGHT) * soft - ARGMAX_LOSS_WEIGHT * log_probs[:, 0]).mean()


def frequent_tokens(answers: Sequence[Answer], vocab_size: int, num: int) -> np.ndarray:
    """int64 [num]: what answers say most."""
    counts = np.zeros(vocab_size)
    for answer in answers:
        counts += np.bincount(answer.answer_ids, minlength=vocab_size)
    return np.argsort(-counts, kind="stable")[:num]


class SmallTraining(TrainingRun):
    """`TrainingRun` of a small drafter, which the folder holds as a Hugging Face model."""

    def __init__(
        self,
        model: Any,
        target_folder: Path,
        answers: Sequence[Answer],
        folder: Path,
        settings: SmallSettings,
        device: str = "cpu",
    ) -> None:
        self._settings = settings
        self._target_folder = target_folder
        self._vocab_size = model.config.vocab_size
        self._frequent = frequent_tokens(answers, self._vocab_size, settings.frequent)
        groups = _groups(model.to(device), settings)
        super().__init__(model, groups, answers, folder, settings, device)

    def step_loss(self, answers: Sequence[Answer], generator: np.random.Generator) -> torch.Tensor:
        """See above."""
        batch, settings = small_batch(answers), self._settings
        wanted = batch.label_ids.unique().numpy()
        scored = Scored.draw(self._frequent, wanted, self._vocab_size, settings.sampled, generator)
        return small_loss(self._model, _moved(batch, self._device), _moved(scored, self._device))

    def evaluation(self, held_out: Sequence[Answer]) -> dict[str, Any]:
        """See `small_evaluation`."""
        return evaluate_small(self._model, self._target_folder, held_out)

    def save(self) -> None:
        """As the draft stage loads it."""
        save_small_drafter(self._model, self._target_folder, self._folder)


def _moved(parts: Any, device: str) -> Any:
    return type(parts)(*(tensor.to(device) for tensor in vars(parts).values()))


def _groups(model: Any, settings: SmallSettings) -> list[dict[str, Any]]:
    """Norms and the embedding are not pulled towards zero."""
    matrices = [p for name, p in model.named_parameters() if p.ndim == 2 and "embed" not in name]
    others = [p for name, p in model.named_parameters() if p.ndim != 2 or "embed" in name]
    rate = settings.learning_rate
    return [
        {"params": matrices, "full_rate": rate, "lr": rate},
        {"params": others, "full_rate": rate, "lr": rate, "weight_decay": 0.0},
    ]
