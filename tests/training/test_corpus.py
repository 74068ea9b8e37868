"""A corpus holds what the target wrote and knew, whatever ran beside it and however often it was
stopped."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from tiny_model import write_tiny_model

from canopy.config import TargetConfig
from canopy.models.decoder import load_decoder
from canopy.models.step_batch import AuxHiddenStates, Segment, assemble_step
from canopy_training.corpus import builder
from canopy_training.corpus.builder import CorpusPlan, aux_layers_of, make_corpus
from canopy_training.corpus.corpus import Corpus, InvalidCorpus, only_writer

NUM_PROMPTS = 9


@pytest.fixture(scope="module")
def target(tmp_path_factory) -> TargetConfig:
    folder = write_tiny_model(tmp_path_factory.mktemp("tiny") / "model")
    return TargetConfig(model=str(folder), dtype="int8", num_threads=1)


@pytest.fixture(scope="module")
def plan(tmp_path_factory) -> CorpusPlan:
    path = tmp_path_factory.mktemp("prompts") / "prompts.jsonl"
    texts = ["far too long a prompt" * 9, *(f"{'x' * i} number {i}" for i in range(NUM_PROMPTS))]
    texts[1] = "a line\u2028and another"
    lines = [json.dumps({"prompt": text}, ensure_ascii=False) for text in texts]
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    return CorpusPlan(path, max_tokens=20, max_prompt_tokens=60, batch=3, num_top=4, shard_size=4)


@pytest.fixture(scope="module")
def corpus(plan, target, tmp_path_factory) -> Corpus:
    folder = tmp_path_factory.mktemp("corpus")
    make_corpus(plan, target, folder)
    return Corpus(folder)


def answer_arrays(answer):
    return (
        answer.token_ids,
        answer.hidden_states,
        answer.top_ids,
        answer.top_log_probs,
    )


def assert_same(one: Corpus, other: Corpus) -> None:
    assert [a.number for a in one] == [a.number for a in other]
    for mine, its in zip(one, other, strict=True):
        for left, right in zip(answer_arrays(mine), answer_arrays(its), strict=True):
            np.testing.assert_array_equal(left, right)


def test_every_prompt_that_fits_is_answered_once(corpus):
    assert [answer.number for answer in corpus] == list(range(NUM_PROMPTS))
    assert corpus.shard_indices == [0, 1, 2]
    assert [answer.is_sampled for answer in corpus] == [bool(n % 2) for n in range(NUM_PROMPTS)]
    assert corpus.num_answer_tokens == sum(len(answer.answer_ids) for answer in corpus)
    assert corpus[-1].number == NUM_PROMPTS - 1
    with pytest.raises(IndexError):
        corpus[NUM_PROMPTS]


def test_features_and_log_probs_are_those_of_one_pass_over_the_text(corpus, target):
    decoder = load_decoder(target.model, "int8", "cpu")
    for answer in (corpus[0], corpus[3], corpus[8]):
        text, num_prompt = answer.token_ids, len(answer.prompt_ids)
        rows = np.arange(len(text) - 1)
        segment = Segment(0, list(range(6)), text[:-1], rows - 1, rows)
        batch = assemble_step([segment], 16, "cpu")
        aux_hidden_states = AuxHiddenStates.of(
            corpus.manifest.aux_hidden_state_layers, batch, decoder.config.hidden_size
        )
        logits = decoder.forward(batch, decoder.new_cache(6, 16), aux_hidden_states)
        np.testing.assert_array_equal(answer.hidden_states, aux_hidden_states.states.half().numpy())
        log_probs = torch.log_softmax(logits[num_prompt - 1 :], dim=-1)
        best = torch.topk(log_probs, 4)
        np.testing.assert_array_equal(answer.top_ids, best.indices.numpy())
        np.testing.assert_allclose(answer.top_log_probs, best.values.numpy(), atol=0.01)
        if not answer.is_sampled:
            np.testing.assert_array_equal(answer.answer_ids, best.indices[:, 0].numpy())


def test_answers_end_at_a_stop_or_at_the_limit(corpus, target):
    [stop] = load_decoder(target.model, "float32", "cpu").config.eos_token_ids
    for answer in corpus:
        assert stop not in answer.answer_ids[:-1]
        assert len(answer.answer_ids) == 20 or answer.answer_ids[-1] == stop


def test_a_run_that_was_killed_is_gone_on_with(corpus, plan, target, tmp_path, monkeypatch):
    class Killed(Exception):
        """The process ends here."""

    write_shard = builder.write_shard

    def killed_at_the_second(folder: Path, index: int, answers) -> None:
        if index == 1:
            raise Killed
        write_shard(folder, index, answers)

    monkeypatch.setattr(builder, "write_shard", killed_at_the_second)
    with pytest.raises(Killed):
        make_corpus(plan, target, tmp_path)
    assert 1 not in Corpus(tmp_path).shard_indices
    monkeypatch.undo()
    found = []
    make_corpus(plan, target, tmp_path, lambda answers, tokens: found.append(answers))
    assert found[0] == 4
    assert sum(found) < NUM_PROMPTS + 4
    assert_same(Corpus(tmp_path), corpus)


def test_the_batch_changes_nothing(corpus, plan, target, tmp_path):
    make_corpus(replace(plan, batch=7), target, tmp_path)
    assert_same(Corpus(tmp_path), corpus)


def test_a_corpus_of_other_settings_is_refused(corpus, plan, target):
    with pytest.raises(InvalidCorpus, match="other settings"):
        make_corpus(replace(plan, max_tokens=21), target, corpus.folder)
    with pytest.raises(InvalidCorpus, match="no corpus"):
        Corpus(corpus.folder / "shard-00000")


def test_two_runs_do_not_write_into_one_folder(plan, target, tmp_path):
    make_corpus(replace(plan, limit=1), target, tmp_path)
    with only_writer(tmp_path), pytest.raises(InvalidCorpus, match="another run"):
        make_corpus(replace(plan, limit=1), target, tmp_path)
    make_corpus(replace(plan, limit=1), target, tmp_path)  # the other one has ended


def test_taps_lie_inside_the_model():
    assert aux_layers_of(30) == (7, 15, 25)
    for num_layers in range(1, 100):
        aux_hidden_states = aux_layers_of(num_layers)
        assert aux_hidden_states == tuple(sorted(set(aux_hidden_states)))
        assert all(0 <= aux_layer < num_layers for aux_layer in aux_hidden_states)
