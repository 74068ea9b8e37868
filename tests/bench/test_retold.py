"""Text retold in another vocabulary is the same text, and is walked over with its tokens."""

import json
from argparse import Namespace
from dataclasses import replace

import pytest

from bench.acceptance import retold, vocabularies
from bench.acceptance.vocabularies import VOCABULARIES, write_model
from bench.harness.benchmark import Options
from bench.harness.prompts import Prompt
from canopy.config import CacheConfig, Deployment, DrafterConfig, LimitsConfig, TargetConfig
from canopy.text.tokenizer import Tokenizer

TEXT = "Dear Ms. O'Hara,\n\n    1. naïve café: 12,345 €\n\tif x < 3:\n        return 'ok'  # 😀"


@pytest.fixture(autouse=True)
def few_texts(monkeypatch, tmp_path):
    texts = [{"answer": f"the answer to question {n} is short"} for n in range(20)]
    monkeypatch.setattr(vocabularies, "read_texts", lambda path: texts)
    monkeypatch.setattr(vocabularies, "NUM_TOKENS", 600)
    monkeypatch.setenv("CANOPY_HOME", str(tmp_path / "home"))


@pytest.mark.parametrize("name", VOCABULARIES)
def test_a_vocabulary_gives_back_any_text(name, tiny_folder, tmp_path):
    write_model(tiny_folder, tmp_path / name, name)
    tokenizer = Tokenizer(tmp_path / name)
    assert tokenizer.decode(tokenizer.encode_rendered(TEXT)) == TEXT
    assert len(tokenizer.encode_rendered("the answer to question")) < 8
    config = json.loads((tmp_path / name / "config.json").read_text())
    assert config["vocab_size"] == tokenizer.vocab_size


def test_every_vocabulary_is_walked_with_the_store_and_without(tiny_folder):
    deployment = Deployment(
        target=TargetConfig(model=str(tiny_folder), dtype="int8", num_threads=1),
        cache=CacheConfig(num_tokens=4096),
        limits=LimitsConfig(max_running=2),
        drafter=DrafterConfig(),
    )
    prompts = [Prompt("qa", "abcabcabcabc"), Prompt("code", "for i in x: for i in y:")]
    arguments = Namespace(max_tokens=12, texts=None)
    options = Options(replace(deployment), prompts, arguments=arguments)
    result = retold.run(options)
    taus = [result.figures[f"{name}_lookup16_tau"] for name in VOCABULARIES]
    assert result.figures["lookup16_tau"] == min(taus) >= 1.0
    rows = result.details["acceptance by policy"]
    assert {r["sources"] for r in rows} == {
        f"{n}{s}" for n in VOCABULARIES for s in ("", "_no_store")
    }
    assert all(row["rounds"] > 0 for row in rows)
