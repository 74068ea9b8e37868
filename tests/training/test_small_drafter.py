"""The small drafter starts from its target, learns, resumes, and drafts as it was saved."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from training.drafter_corpus import VOCABULARY, make_answer, make_corpus

from canopy.config import CacheConfig, Deployment, DrafterConfig, TargetConfig
from canopy.drafter.autoregressive import make_autoregressive_source
from canopy.drafter.source import DraftSequence, DraftTask
from canopy.models.config import ModelConfig
from canopy.models.llama.weights import load_weights
from canopy.sampling import PolicyName, SamplingParams
from canopy.tree.policies import PolicySettings
from canopy_training.loop.course import run_to_the_end
from canopy_training.small_drafter.evaluation import evaluate_small
from canopy_training.small_drafter.model import SmallShape, new_small_drafter
from canopy_training.small_drafter.trainer import (
    Scored,
    SmallSettings,
    SmallTraining,
    small_batch,
    small_loss,
)

SHAPE = SmallShape(hidden_size=32, num_layers=1, head_dim=16, intermediate_size=64)
SETTINGS = SmallSettings(
    steps=60, sequences=4, learning_rate=1e-2, warm_up_steps=5, evaluate_every=60,
    checkpoint_every=10, held_out=2, frequent=100, sampled=40,
)  # fmt: skip


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    return make_corpus(tmp_path_factory.mktemp("corpus"))


@pytest.fixture(autouse=True)
def one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def new_model(tiny_folder, seed=0):
    return new_small_drafter(tiny_folder, SHAPE, seed)


def test_its_embedding_keeps_the_neighbourhoods_of_the_targets(tiny_folder):
    config = ModelConfig.from_folder(tiny_folder)
    target = load_weights(tiny_folder, config)["model.embed_tokens.weight"]
    full = new_small_drafter(tiny_folder, replace(SHAPE, hidden_size=48), 0)
    own = full.model.embed_tokens.weight.detach()
    assert float(own.square().mean().sqrt()) == pytest.approx(0.05, rel=1e-4)
    distances = torch.cdist(own[:40], own[:40])
    wanted = torch.cdist(target[:40], target[:40])
    # All axes kept: every distance, but for the scale.
    torch.testing.assert_close(
        distances / distances.max(), wanted / wanted.max(), atol=1e-3, rtol=0
    )


def test_it_learns_and_the_draft_stage_drafts_with_it(tiny_folder, corpus, tmp_path):
    model = new_model(tiny_folder)
    answers = list(corpus)
    before = evaluate_small(model, tiny_folder, answers[:2])
    training = SmallTraining(model, tiny_folder, answers, tmp_path, SETTINGS)
    progress = run_to_the_end(training, corpus, tmp_path, lambda *_: None, follow=False)
    last = progress.history[-1]
    assert last["loss"] < 0.5 * before["loss"]
    assert last["tree16_tau"] > before["tree16_tau"] + 1.0
    assert last["tree16_tau"] >= last["tree8_tau"]
    assert (tmp_path / "training.png").stat().st_size > 0
    for dtype in ("float32", "int8"):
        tree = drafted(tiny_folder, tmp_path, dtype, answers[5].token_ids[:14].tolist())
        path = answers[5].token_ids[14:18].tolist()
        assert tree.token_ids[1 : len(path) + 1].tolist() == path


def drafted(target, folder, dtype, token_ids):
    """A chain of four from the real source."""
    deployment = Deployment(
        target=TargetConfig(model=str(target), dtype=dtype),
        drafter=DrafterConfig(source="autoregressive", model=str(folder)),
        cache=CacheConfig(num_tokens=256),
    )
    source = make_autoregressive_source(deployment)
    settings = PolicySettings.of_request(PolicyName.CHAIN, 4, deployment.tree)
    sequence = DraftSequence(1, token_ids, SamplingParams(temperature=0.0))
    return source.propose([DraftTask(sequence, settings)])[0].tree


def test_resuming_after_a_kill_equals_never_being_killed(tiny_folder, corpus, tmp_path):
    settings = replace(SETTINGS, steps=20)
    whole = new_model(tiny_folder)
    SmallTraining(whole, tiny_folder, corpus, tmp_path / "whole", settings).run()

    def die(progress, loss):
        if progress.step == 13:
            raise InterruptedError

    cut = tmp_path / "cut"
    with pytest.raises(InterruptedError):
        SmallTraining(new_model(tiny_folder), tiny_folder, corpus, cut, settings).run(die)
    resumed = new_model(tiny_folder, seed=9)
    training = SmallTraining(resumed, tiny_folder, corpus, cut, settings)
    assert training.resume()
    assert training.progress.step == 10
    training.run()
    for name, tensor in whole.state_dict().items():
        torch.testing.assert_close(resumed.state_dict()[name], tensor, rtol=0, atol=0)


def test_rows_are_asked_for_the_law_of_the_answers_tokens():
    answers = [make_answer(0), make_answer(1, 9, 7)]
    batch = small_batch(answers)
    flat = batch.token_ids.flatten()
    parents = np.concatenate(
        [answer.token_ids[len(answer.prompt_ids) - 1 : -1] for answer in answers]
    )
    assert flat[batch.rows].tolist() == parents.tolist()
    tokens = np.concatenate([answer.answer_ids for answer in answers])
    assert batch.label_ids[:, 0].tolist() == tokens.tolist()
    assert batch.label_probs[:, 0].tolist() == pytest.approx([0.8] * len(tokens), abs=1e-3)


def test_the_sampled_sum_means_the_whole_vocabulary(tiny_folder):
    model, batch = new_model(tiny_folder).eval(), small_batch([make_answer(0)])
    wanted, everything = batch.label_ids.unique().numpy(), np.arange(VOCABULARY)
    rng = np.random.default_rng(0)

    def loss(always, num):
        with torch.inference_mode():
            scored = Scored.draw(always, wanted, VOCABULARY, num, rng)
            return float(small_loss(model, batch, scored))

    whole = loss(everything, 0)
    sampled = [loss(everything[:20], 60) for _ in range(40)]
    assert np.mean(sampled) == pytest.approx(whole, abs=0.01)
    # Weights at work: without them the sum would be of a third of the vocabulary.
    assert abs(np.mean(sampled) - whole) < 0.1 * math.log(3.0)
