"""A drafter that knows the answer gets its weight beside lookup."""

import numpy as np
import pytest
import torch
from training.drafter_corpus import make_corpus, make_drafter

from canopy_kernels.ngram.continuations import FEATURES
from canopy_kernels.ngram.ngram_table import empty_ngram_table
from canopy_training.block_drafter.combined_weights import drafting_with
from canopy_training.block_drafter.trainer import DrafterTraining, TrainingSettings
from canopy_training.lookup.ngrams import is_held_out
from canopy_training.lookup.survival import acceptance, anchor_positions, fit, gather

SETTINGS = TrainingSettings(
    steps=40, sequences=4, anchors=8, learning_rate=3e-3, warm_up_steps=5, evaluate_every=1000,
    held_out=2,
)  # fmt: skip


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    return make_corpus(tmp_path_factory.mktemp("corpus"))


@pytest.fixture(scope="module")
def drafter(tiny_folder, corpus, tmp_path_factory):
    torch.set_num_threads(1)
    drafter = make_drafter(tiny_folder)
    DrafterTraining(drafter, corpus, tmp_path_factory.mktemp("out"), SETTINGS).run()
    return drafter.eval()


def foreseen(examples) -> float:
    """Expected number of tokens that the likeliest candidates' acceptance promises rightly."""
    return float((acceptance(examples, fit(examples)) * examples.accepted).sum())


def test_a_trained_drafter_makes_what_comes_more_foreseeable(corpus, drafter):
    answers = [answer for answer in corpus if is_held_out(answer.number)]
    assert answers
    alone = gather(answers, empty_ngram_table(), 4)
    mixed = gather(answers, empty_ngram_table(), 4, drafting=drafting_with(drafter, 200))
    assert mixed.num_nodes >= alone.num_nodes
    assert foreseen(mixed) > 3.0 * foreseen(alone) + 20.0
    sums = np.bincount(mixed.nodes, acceptance(mixed, fit(mixed)))
    assert sums.max() <= 1.0
    drafted = mixed.features[:, FEATURES.index("drafted")] > 0
    assert set(mixed.depths[drafted]) == {1, 2, 3, 4}


def test_anchors_see_every_token_of_the_answer_once():
    tokens = [p + d for p, span in anchor_positions(10, 200) for d in range(min(span, 200 - p))]
    assert tokens == list(range(10, 200))
