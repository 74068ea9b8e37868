"""What copying is worth follows from how often the copy is right."""

import numpy as np
import pytest
import torch
from training.drafter_corpus import BLOCK_SIZE, DRAFT_IDS, HIDDEN, TAPS, VOCABULARY, make_drafter

from canopy_kernels.ngram.prompt_lookup import LONGEST_COPIED_MATCH
from canopy_training.block_drafter.copy_bonus import fit_copy_bonus
from canopy_training.block_drafter.data import Batches
from canopy_training.block_drafter.loss import distillation_loss
from canopy_training.corpus.corpus import Answer

BATCHES = Batches(DRAFT_IDS, VOCABULARY, BLOCK_SIZE)


def repeating(number: int, is_copied: bool) -> Answer:
    """A text of a few tokens in turn, whose writer wanted them, or others of which none came."""
    generator = np.random.default_rng(number)
    tokens = np.tile(generator.choice(100, 6, replace=False), 8).astype(np.int32)
    wanted = tokens[20:] if is_copied else tokens[20:] + 100
    return Answer(
        number=number,
        is_sampled=False,
        prompt_ids=tokens[:20],
        answer_ids=tokens[20:],
        hidden_states=generator.normal(size=(len(tokens) - 1, len(TAPS), HIDDEN)).astype(
            np.float16
        ),
        top_ids=wanted[:, None],
        top_log_probs=np.zeros((len(wanted), 1), np.float16),
    )


@pytest.mark.parametrize("is_copied", [True, False])
def test_the_bonus_has_the_sign_of_what_copying_brings_and_lowers_the_loss(tiny_folder, is_copied):
    drafter = make_drafter(tiny_folder).eval()
    answers = [repeating(number, is_copied) for number in range(8)]
    batch = BATCHES.of(answers, 8, np.random.default_rng(1), decay=0.0)
    with torch.no_grad():
        before = distillation_loss(drafter, batch, drafter.head())
        fit_copy_bonus(drafter, answers, BATCHES)
        after = distillation_loss(drafter, batch, drafter.head())
    longest = drafter.copy_bonus[:, LONGEST_COPIED_MATCH]
    assert (longest > 3.0).all() if is_copied else (longest < 0.0).all()
    assert (drafter.copy_bonus[:, :LONGEST_COPIED_MATCH] == 0.0).all()  # never met
    assert after < 0.5 * before if is_copied else after < before
