"""The comparison with peers on toy arms: order, statistics and failures; nothing is downloaded."""

import sys
from argparse import Namespace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.harness.benchmark import Options
from bench.harness.prompts import Prompt
from bench.peers import canopy_server, hf_transformers, llamacpp, peers
from bench.peers.arm import Answer, Arm, CannotRun, ChatPrompt, Stopwatch, answer_at_once
from bench.peers.measurement import InterleavedRun, Plan
from bench.peers.process_group import group_memory
from bench.peers.samples import (
    Sample,
    Samples,
    arm_order,
    batches,
    paired_ratios,
    ratio_records,
    speed_records,
    tokens_per_second,
)
from canopy.config import CacheConfig, Deployment, TargetConfig

PROMPTS = [ChatPrompt(str(number), (number,)) for number in range(5)]


def sample(arm="a", concurrency=1, batch=0, repeat=0, seconds=1.0, num_tokens=10):
    first_token_s = (seconds / 10,) * concurrency
    return Sample(arm, concurrency, batch, repeat, seconds, num_tokens, first_token_s)


# Order


@given(st.integers(1, 7))
def test_every_arm_stands_in_every_place_and_before_and_after_every_other(num_arms):
    arms = list(range(num_arms))
    orders = [arm_order(arms, turn) for turn in range(2 * num_arms)]
    for arm in arms:
        places = [order.index(arm) for order in orders]
        assert all(places.count(place) == 2 for place in arms)
        for other in set(arms) - {arm}:
            num_before = sum(order.index(arm) < order.index(other) for order in orders)
            assert 2 * num_before == len(orders)


@given(st.integers(1, 20), st.integers(1, 8))
def test_batches_are_full_and_hold_every_prompt(num_prompts, size):
    made = batches(list(range(num_prompts)), size)
    assert {len(batch) for batch in made} == {size}
    assert {prompt for batch in made for prompt in batch} == set(range(num_prompts))
    assert size * len(made) < num_prompts + size


# Statistics


def test_a_stalled_repeat_does_not_change_the_speed():
    steady = [sample(batch=b, repeat=r, seconds=1.0 + b) for b in range(2) for r in range(3)]
    stalled = [*steady[:-1], sample(batch=1, repeat=2, seconds=50.0)]
    assert tokens_per_second(steady) == tokens_per_second(stalled) == pytest.approx(20 / 3)


def test_paired_ratios_compare_the_same_batch_and_repeat():
    fast = [sample(batch=b, repeat=r, seconds=1.0 + b + r) for b in range(2) for r in range(2)]
    slow = [sample("b", batch=s.batch, repeat=s.repeat, seconds=3 * s.seconds) for s in fast]
    assert paired_ratios(fast, slow[1:]) == pytest.approx([3.0] * 3)


def test_figures_are_ratios_of_what_was_measured():
    seconds = {
        peers.SPECULATING: 1.0,
        peers.PLAIN: 2.0,
        "llamacpp": 3.0,
        "llamacpp_ngram_cache": 1.5,
    }
    samples = Samples([sample(arm, seconds=time) for arm, time in seconds.items()])
    figures = peers.figures(samples)
    assert figures["ours_over_llamacpp_1"] == pytest.approx(3.0)
    assert figures["ours_over_best_llamacpp_1"] == pytest.approx(1.5)
    assert figures["priced_over_ar_1"] == pytest.approx(2.0)
    assert figures["canopy_tokens_per_s_1"] == pytest.approx(10.0)
    assert not any("transformers" in name or name.endswith("_8") for name in figures)


def test_without_our_server_there_are_speeds_but_no_ratios():
    figures = peers.figures(Samples([sample("llamacpp", concurrency=8)]))
    assert figures == {"llamacpp_tokens_per_s_8": 10.0}


def test_tables_have_a_record_for_each_arm_that_was_measured():
    samples = Samples(
        [sample("a"), sample("b", seconds=2.0), sample("a", concurrency=8), sample("c")]
    )
    assert [(r["concurrent"], r["arm"]) for r in speed_records(samples)] == [
        (1, "a"),
        (1, "b"),
        (1, "c"),
        (8, "a"),
    ]
    records = ratio_records(samples, "a")
    assert [(r["over"], r["ratio"], r["paired_median"]) for r in records] == [
        ("b", 2.0, 2.0),
        ("c", 1.0, 1.0),
    ]


# Measuring


def toy_arm(name, num_tokens=None, fails_after=1 << 30, max_concurrency=8):
    """Keeps what it is asked in `asked`; from one answer on it fails."""
    asked = []

    def answer(prompts, wanted):
        if len(asked) == fails_after:
            raise CannotRun("fell over")
        asked.append([prompt.text for prompt in prompts])
        return [Answer(0.1, 0.2, num_tokens or wanted)] * len(prompts)

    return Arm(name, answer, 0, max_concurrency), asked


def run_race(*arms, prompts=PROMPTS, concurrencies=(1, 2), num_repeats=2):
    race = InterleavedRun(arms, Plan(list(concurrencies), num_repeats, num_tokens=7))
    advances = []
    samples = race.run(prompts, lambda: advances.append(1))
    assert len(advances) == race.plan.num_steps(len(prompts), len(arms))
    return samples, race.reasons


def test_arms_answer_the_same_batches_as_often_as_planned():
    (a, asked_a), (b, asked_b) = toy_arm("a"), toy_arm("b")
    samples, reasons = run_race(a, b)
    assert asked_a == asked_b
    assert not reasons
    assert samples.arms == ["a", "b"]
    for arm in ("a", "b"):
        assert len(samples.of(arm, 1)) == 10
        assert [s.num_tokens for s in samples.of(arm, 2)] == [14] * 6


def test_an_arm_that_fails_is_listed_with_its_reason_and_leaves_no_sample():
    (a, _), (b, _), (c, _) = toy_arm("a"), toy_arm("b", fails_after=3), toy_arm("c", num_tokens=6)
    samples, reasons = run_race(a, b, c, concurrencies=[1])
    assert samples.arms == ["a"]
    assert reasons == {
        "b at 1": "fell over",
        "c at 1": "an answer has 6 tokens instead of 7",
    }


def test_an_arm_that_takes_one_request_at_once_is_measured_with_one():
    samples, reasons = run_race(toy_arm("a")[0], toy_arm("b", max_concurrency=1)[0])
    assert samples.of("b", 1)
    assert not samples.of("b", 2)
    assert reasons == {"b at 2": "takes 1 at once"}


def test_prompts_sent_at_once_are_answered_in_their_order():
    def answer(prompt):
        return Answer(0.0, 0.0, prompt.token_ids[0])

    assert [a.num_tokens for a in answer_at_once(PROMPTS, answer)] == [0, 1, 2, 3, 4]


def test_the_first_token_counts_and_an_answer_has_one():
    stopwatch = Stopwatch()
    with pytest.raises(CannotRun, match="without a token"):
        stopwatch.answer(0)
    stopwatch.token()
    first = stopwatch.answer(1).first_token_s
    stopwatch.token()
    answer = stopwatch.answer(2)
    assert answer.first_token_s == first <= answer.total_s


def test_a_peer_that_cannot_start_is_listed_and_the_others_are_measured(tiny_folder, monkeypatch):
    def no_environment(requirement):
        raise CannotRun(f"pip could not install {requirement}")

    monkeypatch.setattr(llamacpp, "python_with", no_environment)
    monkeypatch.setattr(llamacpp, "gguf_of", lambda model, progress: tiny_folder)
    arguments = Namespace(
        arms=["llamacpp"], concurrency=[1], repeats=1, max_tokens=4, synthetic=None
    )
    target = TargetConfig(model=str(tiny_folder), dtype="float32")
    options = Options(Deployment(target=target), [Prompt("qa", "a")], arguments=arguments)
    result = peers.run(options)
    reason = f"pip could not install {llamacpp.REQUIREMENT}"
    absent = {record["arm"]: record["reason"] for record in result.details["not measured"]}
    assert absent == {"llamacpp": reason, **llamacpp.LEFT_OUT}
    assert set(result.figures) == {"cores_elsewhere"}


def test_a_model_of_ones_own_has_no_gguf():
    peer = llamacpp.llamacpp_arms("llamacpp", "some/folder", slots=1, slot_tokens=8)
    with pytest.raises(CannotRun, match="no GGUF"), peer:
        pass


# Real arms


def test_transformers_answers_with_the_tokens_that_are_asked_for(
    tiny_folder, tmp_path, monkeypatch
):
    monkeypatch.setattr(hf_transformers, "python_with", lambda _: Path(sys.executable))
    monkeypatch.setattr(hf_transformers, "peers_home", lambda: tmp_path)
    with hf_transformers.transformers_arms(tiny_folder) as (plain, lookup):
        answers = plain.answer(PROMPTS[1:3], 5)
        answers += lookup.answer([ChatPrompt("", (1, 2, 3, 1, 2, 3, 1, 2))], 5)
    assert [answer.num_tokens for answer in answers] == [5, 5, 5]
    assert all(0 < answer.first_token_s <= answer.total_s for answer in answers)


@pytest.mark.server
def test_our_server_answers_with_the_tokens_that_are_asked_for(tiny_folder):
    target = TargetConfig(model=str(tiny_folder), dtype="float32", num_threads=1)
    deployment = Deployment(target=target, cache=CacheConfig(num_tokens=2048))
    prompts = peers.chat_prompts(tiny_folder, [Prompt("qa", "abcabc"), Prompt("qa", "to be")])
    with canopy_server.canopy_arms(deployment) as arms:
        samples, reasons = run_race(*arms, prompts=prompts, num_repeats=1)
        assert all(group_memory(arm.process_group).resident_mb > 1 for arm in arms)
    assert not reasons
    assert samples.arms == [peers.SPECULATING, peers.PLAIN]
    figures = peers.figures(samples)
    assert figures["priced_over_ar_1"] > 0
    assert figures["priced_over_ar_2"] > 0
