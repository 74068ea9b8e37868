"""One command makes a store that a deployment of the target uses, and fits it to unseen answers."""

import json

import numpy as np
import pytest
from tiny_model import write_tiny_model

from canopy.config import TargetConfig
from canopy.drafter.lookup.ngram_store import NgramStore
from canopy.model_store.vocabulary import vocabulary_digest
from canopy.text.tokenizer import Tokenizer
from canopy_kernels.ngram.continuations import NUM_FEATURES
from canopy_training.corpus.corpus import InvalidCorpus
from canopy_training.lookup import own_store
from canopy_training.lookup.own_store import write_own_store

TEXTS = [{"prompt": f"say {n}", "answer": f"this is {n}"} for n in range(40)]


@pytest.fixture
def target(tmp_path, monkeypatch):
    monkeypatch.setattr(own_store, "read_texts", lambda path: iter(TEXTS))
    plan = own_store.CorpusPlan
    monkeypatch.setattr(
        own_store, "CorpusPlan", lambda prompts, batch: plan(prompts, max_tokens=16, batch=batch)
    )
    folder = write_tiny_model(tmp_path / "model")
    return TargetConfig(model=str(folder), dtype="int8", num_threads=1)


def test_a_store_is_made_from_the_prompts_that_ship(target, tmp_path):
    made = write_own_store(None, tmp_path / "own" / "store.safetensors", target, 10.0, 8)
    assert made.num_answers == len(TEXTS)
    folder = tmp_path / "model"
    found = NgramStore.open(tmp_path / "own" / "store.safetensors", vocabulary_digest(folder))
    assert found.weights.shape == (NUM_FEATURES,)
    assert np.abs(found.weights).max() > 0.0
    np.testing.assert_array_equal(found.ngrams.keys, made.store.ngrams.keys)


def test_texts_of_held_out_prompts_are_not_counted(target, tmp_path, monkeypatch):
    seen = []
    real = own_store.count
    monkeypatch.setattr(
        own_store,
        "count",
        lambda answers, further: seen.append((list(answers), further)) or real(answers, further),
    )
    write_own_store(None, tmp_path / "store.safetensors", target, 10.0, 8)
    [(counted, further)] = seen
    tokenizer = Tokenizer(tmp_path / "model")
    prompts = {tokenizer.decode(answer.prompt_ids.tolist()) for answer in counted}
    told = {tokenizer.decode(text.tolist()) for text in further}
    asked = {t["answer"] for t in TEXTS if any(f"] {t['prompt']}\n" in p for p in prompts)}
    assert told == asked
    assert len(told) == 36


def test_one_s_own_prompts_are_answered_instead(target, tmp_path):
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text("".join(json.dumps({"prompt": f"p{n}"}) + "\n" for n in range(41)))
    made = write_own_store(prompts, tmp_path / "store.safetensors", target, 10.0, 8)
    assert made.num_answers == 41


def test_too_little_time_is_told_and_leaves_no_file(target, tmp_path):
    with pytest.raises(InvalidCorpus, match="answer more prompts"):
        write_own_store(None, tmp_path / "store.safetensors", target, 0.0, 8)
    assert not (tmp_path / "store.safetensors").exists()
