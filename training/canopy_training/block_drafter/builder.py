"""From a corpus to a trained block drafter in a folder."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from canopy.models.block_drafter.checkpoint import drafter_config, new_drafter
from canopy.models.block_drafter.network import BlockDrafter
from canopy.models.config import ModelConfig
from canopy.text.tokenizer import Tokenizer
from canopy_training.block_drafter.data import aux_layer_scales, draft_vocabulary, prompt_counts
from canopy_training.block_drafter.trainer import DrafterTraining, TrainingSettings
from canopy_training.corpus.corpus import Corpus
from canopy_training.loop.course import run_to_the_end
from canopy_training.loop.run import OnStep, Progress


@dataclass(frozen=True)
class DrafterPlan:
    """The network of a new drafter."""

    num_layers: int = 2
    draft_vocab_size: int = 16384
    dropout: float = 0.05
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
    scales = torch.from_numpy(aux_layer_scales(corpus))
    config = drafter_config(
        target_folder, size, corpus.manifest.aux_hidden_state_layers, plan.num_layers
    )
    torch.manual_seed(seed)
    return new_drafter(target_folder, config, draft_ids, scales, plan.dropout)


def train_drafter(
    corpus: Corpus,
    target_folder: Path,
    out: Path,
    plan: DrafterPlan,
    settings: TrainingSettings,
    device: str,
    on_step: OnStep,
    follow: bool = False,
) -> Progress:
    """Train, or go on with the checkpoint in `out`.

    follow: take up the shards that have been completed since, again and again.
    """
    drafter = untrained_drafter(corpus, target_folder, plan, settings.seed)
    training = DrafterTraining(drafter, corpus, out, settings, device)
    return run_to_the_end(training, corpus, out, on_step, follow)
