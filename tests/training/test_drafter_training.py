"""The block drafter learns, resumes where it was killed, and loads as it was saved."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from training.drafter_corpus import (
    BLOCK_SIZE,
    DRAFT_IDS,
    VOCABULARY,
    make_answer,
    make_corpus,
    make_drafter,
)

from canopy.errors import InvalidDeployment
from canopy.models.block_drafter.checkpoint import load_drafter, save_drafter
from canopy_training.block_drafter.data import (
    Batches,
    aux_layer_scales,
    draft_vocabulary,
    is_held_out,
)
from canopy_training.block_drafter.evaluation import evaluate
from canopy_training.block_drafter.trainer import DrafterTraining, TrainingSettings

SETTINGS = TrainingSettings(
    steps=60, sequences=4, anchors=8, learning_rate=3e-3, warm_up_steps=5, evaluate_every=60,
    checkpoint_every=10, held_out=4, candidates=200,
)  # fmt: skip


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    return make_corpus(tmp_path_factory.mktemp("corpus"))


@pytest.fixture
def answers(corpus):
    return list(corpus)


@pytest.fixture(autouse=True)
def one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


class Killed(Exception):
    pass


def test_a_few_steps_lower_the_held_out_loss_and_lengthen_what_is_accepted(
    tiny_folder, answers, tmp_path
):
    drafter = make_drafter(tiny_folder)
    held_out = [answer for answer in answers if is_held_out(answer.number)]
    before = evaluate(drafter, held_out, 8, 200)
    DrafterTraining(drafter, answers, tmp_path, SETTINGS).run()
    after = evaluate(drafter, held_out, 8, 200)
    assert after.loss < 0.7 * before.loss
    assert after.tree16_tau > before.tree16_tau + 1.0
    assert after.tree16_tau >= after.tree8_tau >= after.chain_tau


def test_resuming_after_a_kill_equals_never_being_killed(tiny_folder, answers, tmp_path):
    settings = replace(SETTINGS, steps=20)
    whole = make_drafter(tiny_folder, dropout=0.1)
    DrafterTraining(whole, answers, tmp_path / "whole", settings).run()

    def die(progress, loss):
        if progress.step == 13:
            raise Killed

    killed = DrafterTraining(
        make_drafter(tiny_folder, dropout=0.1), answers, tmp_path / "cut", settings
    )
    with pytest.raises(Killed):
        killed.run(die)
    resumed = make_drafter(tiny_folder, seed=9, dropout=0.1)
    resumed.draft_ids.add_(1)  # as when the corpus has grown: the checkpoint's vocabulary counts
    training = DrafterTraining(resumed, answers, tmp_path / "cut", settings)
    assert training.resume()
    assert training.progress.step == 10
    training.run()
    for name, tensor in whole.state_dict().items():
        torch.testing.assert_close(resumed.state_dict()[name], tensor, rtol=0, atol=0)


def test_a_drafter_loads_as_it_was_saved(tiny_folder, tmp_path):
    drafter = make_drafter(tiny_folder)
    save_drafter(drafter, tmp_path)
    loaded = load_drafter(tmp_path, tiny_folder)
    assert loaded.config == drafter.config
    for name, tensor in drafter.state_dict().items():
        torch.testing.assert_close(loaded.state_dict()[name], tensor, rtol=2**-8, atol=0)


def test_a_drafter_of_another_vocabulary_is_refused(tiny_folder, tmp_path):
    drafter = make_drafter(tiny_folder)
    drafter.config = replace(drafter.config, vocabulary="0" * 64)
    save_drafter(drafter, tmp_path)
    with pytest.raises(InvalidDeployment, match="vocabulary"):
        load_drafter(tmp_path, tiny_folder)


def test_rows_are_asked_for_the_tokens_that_came(answers):
    batches = Batches(DRAFT_IDS, VOCABULARY, BLOCK_SIZE)
    answer = answers[0]
    batch = batches.of([answer], 16, np.random.default_rng(0), decay=0.0)
    tokens = answer.token_ids
    for block, anchor in enumerate(batch.anchors[0].tolist()):
        for row in range(4):
            index = anchor + row + 1
            assert bool(batch.is_kept[0, block, row]) == (index < len(tokens))
            if index >= len(tokens):
                continue
            assert batch.parent_ids[0, block, row] == tokens[index - 1]
            assert batch.next_ids[0, block, row] == tokens[index]
            assert batch.label_ids[0, block, row, 0] == tokens[index]
            assert batch.label_probs[0, block, row, 0] == pytest.approx(0.8, abs=1e-3)


def test_labels_outside_the_draft_vocabulary_weigh_nothing(answers):
    batches = Batches(np.array([7]), VOCABULARY, BLOCK_SIZE)
    batch = batches.of([answers[0]], 16, np.random.default_rng(0), decay=0.0)
    assert not batch.label_probs[batch.label_ids != 0].any()
    assert batch.label_probs.sum() <= 16 * 4


def test_the_draft_vocabulary_holds_what_is_said_most(corpus):
    counts = np.zeros(VOCABULARY)
    for answer in corpus:
        counts += np.bincount(answer.answer_ids, minlength=VOCABULARY)
    ids = draft_vocabulary(corpus, 50, np.zeros(VOCABULARY))
    assert len(ids) == 50
    assert counts[ids].min() >= np.sort(counts)[-50] - 2
    wanted = np.zeros(VOCABULARY)
    wanted[[250, 251]] = 1e6
    assert {250, 251} <= set(draft_vocabulary(corpus, 50, wanted).tolist())
    assert aux_layer_scales(corpus).shape == (2,)


def test_an_answer_of_two_tokens_gives_no_rows_beyond_its_end():
    batches = Batches(DRAFT_IDS, VOCABULARY, BLOCK_SIZE)
    batch = batches.of([make_answer(3, 12, 1)], 4, np.random.default_rng(0), decay=0.0)
    assert batch.is_kept[0].sum(dim=1).tolist() == [1, 1, 1, 1]
