"""Structured output through the whole pipeline: valid, and the same text with and without trees."""

import json
import re
from itertools import product

import pytest

from bench.harness.local_engine import LocalEngine
from canopy.config import Deployment, DrafterConfig, TargetConfig
from canopy.errors import InvalidRequest

SIZE = {"type": "integer", "minimum": 0, "maximum": 99}
SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 6},
        "kind": {"enum": ["alpha", "beta"]},
        "sizes": {
            "type": "array",
            "items": {"type": "integer", "minimum": 0, "maximum": 99},
            "maxItems": 3,
        },
    },
    "required": ["name", "kind", "sizes"],
    "additionalProperties": False,
}
FORMS = {
    "json": {"json": SCHEMA},
    "regex": {"regex": "(ab|cd){3,9}[xyz]"},
    "choice": {"choice": ["alpha beta", "alpha gamma", "delta"]},
    "grammar": {"grammar": 'start: "(" start ")" | "a" | "a" start'},
}


def is_valid(form: str, text: str) -> bool:
    if form == "json":
        content = json.loads(text)
        return (
            list(content) == ["name", "kind", "sizes"]
            and len(content["name"]) <= 6
            and content["kind"] in ("alpha", "beta")
            and all(isinstance(size, int) and size <= 99 for size in content["sizes"])
        )
    if form == "regex":
        return re.fullmatch(FORMS["regex"]["regex"], text) is not None
    if form == "choice":
        return text in FORMS["choice"]["choice"]
    inner = re.sub(r"a", "", text)
    return set(text) <= set("(a)") and inner.count("(") == inner.count(")")


@pytest.fixture(scope="module")
def engine(tiny_folder) -> LocalEngine:
    target = TargetConfig(model=str(tiny_folder), dtype="int8")
    return LocalEngine(Deployment(target=target, drafter=DrafterConfig(source="lookup")))


def answers(engine, form, **options):
    requests = [
        engine.chat_request(
            f"say {form} {seed}",
            structured_outputs=FORMS[form],
            max_tokens=200,
            temperature=0.7,
            seed=seed,
            **options,
        )
        for seed in range(4)
    ]
    return engine.run(requests)


@pytest.mark.parametrize("form", FORMS)
def test_every_answer_is_valid_and_does_not_depend_on_speculation(engine, form):
    plain = answers(engine, form, speculation="off")
    for answer in plain:
        assert answer.finish_reason == "stop", answer.text
        assert is_valid(form, answer.text), answer.text
    for policy, budget in product(("topn", "priced"), (1, 12)):
        drafted = answers(engine, form, speculation=policy, node_budget=budget)
        assert [a.text for a in drafted] == [a.text for a in plain]


@pytest.mark.parametrize("mode", ["rejection", "traversal", "target_only"])
def test_every_acceptance_mode_emits_valid_text(engine, mode):
    for answer in answers(engine, "json", acceptance=mode, speculation="topn", node_budget=8):
        assert answer.finish_reason == "stop"
        assert is_valid("json", answer.text), answer.text


def test_text_that_must_come_is_drafted_for_free(engine):
    """The only choice is one long text: the tree spells it, and nearly every token is accepted."""
    text = "the quick brown fox jumps over the lazy dog"
    request = engine.chat_request(
        "go",
        structured_outputs={"choice": [text]},
        speculation="topn",
        node_budget=8,
        max_tokens=99,
    )
    [answer] = engine.run([request])
    assert answer.text == text
    assert answer.report["rounds"] <= len(text) // 4


def test_an_answer_cut_by_max_tokens_is_the_beginning_of_a_valid_one(engine):
    def asked(max_tokens):
        request = engine.chat_request(
            "go", structured_outputs=FORMS["json"], max_tokens=max_tokens, seed=5, temperature=1.0
        )
        return engine.run([request])[0]

    whole = asked(200)
    for max_tokens in (1, 7, 15):
        cut = asked(max_tokens)
        assert cut.finish_reason == "length"
        assert whole.text.startswith(cut.text)


def test_it_goes_with_other_options(engine):
    request = engine.chat_request(
        "go",
        structured_outputs={"regex": "[ab]{1,30}"},
        logit_bias={"97": -100},
        min_tokens=9,
        max_tokens=60,
        temperature=0.5,
        seed=1,
        speculation="topn",
    )
    [answer] = engine.run([request])
    assert re.fullmatch("[ab]{9,30}", answer.text)
    finished_early = engine.chat_request(
        "go", structured_outputs={"choice": ["ab"]}, min_tokens=9, max_tokens=60
    )
    assert [a.text for a in engine.run([finished_early])] == ["ab"]


def test_a_grammar_that_cannot_be_used_is_refused_before_anything_runs(engine):
    for value in ({"regex": "("}, {"json": {"type": "foo"}}, {}):
        with pytest.raises(InvalidRequest, match="structured_outputs"):
            engine.chat_request("go", structured_outputs=value)
    with pytest.raises(InvalidRequest, match="ignore_eos"):
        engine.chat_request("go", structured_outputs={"regex": "a"}, ignore_eos=True)
