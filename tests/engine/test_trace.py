"""The trace of a request says, round by round, where its tokens came from."""

import itertools

import numpy as np
import pytest
from test_direct_stages import PROMPTS, DirectPipeline
from toys import CollectingSink, Pipeline, continuation, decode

from canopy.config import DrafterConfig
from canopy.engine.trace import path_survival
from canopy.frontend.client_request import ClientRequest
from canopy.sampling import PolicyName


def rounds_of(sink: CollectingSink) -> list[dict]:
    return [traced for delta in sink.deltas for traced in delta.rounds or []]


def emitted_by(traced: dict) -> list[int]:
    """The tokens of a round as its trace tells them."""
    bonus = [] if traced["bonus"] is None else [traced["bonus"]["token_id"]]
    return [traced["token_ids"][node] for node in traced["accepted"]] + bonus


def all_emitted(rounds: list[dict]) -> list[int]:
    return [token_id for traced in rounds for token_id in emitted_by(traced)]


def assert_is_path(traced: dict) -> None:
    for node, parent in zip(traced["accepted"], [0, *traced["accepted"]], strict=False):
        assert traced["parents"][node] == parent


def test_a_round_tells_its_tree_its_path_and_its_price():
    pipeline = Pipeline()
    prompt = [3, 1, 4]
    sink = pipeline.submit(prompt, trace=True, stream=True)
    pipeline.run()
    expected = continuation(prompt, 12)
    plain, first = rounds_of(sink)[:2]
    assert (plain["round"], plain["token_ids"], plain["accepted"]) == (1, [4], [])
    assert (plain["price"], plain["bonus"]["token_id"]) == (None, expected[0])
    assert first["token_ids"] == [expected[0], *expected[1:3], 0]
    assert first["texts"] == [*decode(first["token_ids"])]
    assert (first["parents"], first["accepted"]) == ([-1, 0, 1, 2], [1, 2])
    assert first["bonus"] == {"token_id": expected[3], "text": decode(expected[3:4])}
    assert (first["predicted_ms"], first["node_budget"]) == (1.0, 4)
    assert (first["num_running"], first["verify_ms"] > 0) == (1, True)


@pytest.mark.parametrize(("policy", "price"), [(PolicyName.PRICED, 0.5), (PolicyName.TOPN, None)])
def test_a_price_is_told_where_it_was_asked(policy, price):
    pipeline = Pipeline()
    sink = pipeline.submit([3, 1, 4], trace=True, policy=policy)
    pipeline.run()
    drafted = [traced["price"] for traced in rounds_of(sink) if len(traced["token_ids"]) > 1]
    assert drafted
    assert set(drafted) == {price}


def test_every_streamed_piece_brings_the_rounds_since_the_last():
    pipeline = Pipeline()
    sink = pipeline.submit([3, 1, 4], trace=True, stream=True)
    pipeline.run()
    told = [[t["round"] for t in delta.rounds] for delta in sink.deltas]
    assert len(told) > 1
    assert [*itertools.chain(*told)] == list(range(1, sink.deltas[-1].report["rounds"] + 1))
    for delta in sink.deltas:
        assert decode(all_emitted(delta.rounds)) == delta.text


def test_who_asks_for_no_trace_gets_none_beside_one_who_does():
    pipeline = Pipeline()
    silent = pipeline.submit([1, 5, 9], stream=True)
    traced = pipeline.submit([1, 5, 9], stream=True, trace=True)
    pipeline.run()
    assert {delta.rounds for delta in silent.deltas} == {None}
    assert silent.text == traced.text
    assert rounds_of(traced)[1]["num_running"] == 2


def test_a_stop_string_cuts_the_trace_where_it_cuts_the_answer():
    prompt = [3, 1, 4]
    tokens = continuation(prompt, 12)
    pipeline = Pipeline()
    sink = pipeline.submit(prompt, trace=True, stop_strings=(decode(tokens[2:3]),))
    pipeline.run()
    first = tokens.index(tokens[2])
    assert all_emitted(rounds_of(sink)) == tokens[: first + 1]
    assert rounds_of(sink)[-1]["bonus"] is None


def test_rounds_go_on_counting_after_a_preemption():
    pipeline = Pipeline()
    sink = pipeline.submit([3, 1, 4], trace=True)
    pipeline.engine.step()
    pipeline.verifier.preempt_next.add(max(pipeline.verifier.known))
    pipeline.run()
    assert all_emitted(rounds_of(sink)) == continuation([3, 1, 4], 12)
    assert sink.deltas[-1].report["preemptions"] == 1


def test_survival_multiplies_along_the_path():
    parents = np.array([-1, 0, 0, 1])
    survival = path_survival(np.log([1.0, 0.5, 0.25, 0.1]), parents)
    assert survival == pytest.approx([1.0, 0.5, 0.25, 0.05])


@pytest.fixture(scope="module")
def pipeline(tiny_folder) -> DirectPipeline:
    itself = DrafterConfig(source="autoregressive", model=str(tiny_folder))
    return DirectPipeline(tiny_folder, "float32", drafter=itself)


@pytest.mark.parametrize("acceptance", ["greedy", "coupled", "rejection", "traversal"])
@pytest.mark.parametrize("policy", ["topn", "priced"])
def test_the_traced_paths_spell_the_tokens_that_were_emitted(pipeline, policy, acceptance):
    params = {"temperature": 0.0} if acceptance == "greedy" else {"acceptance": acceptance}
    given = {"seed": 5, "max_tokens": 40, "ignore_eos": True, "trace": True, **params}
    given |= {"speculation": policy, "node_budget": 10}
    rounds = [traced for prompt in PROMPTS[:2] for traced in traced_rounds(pipeline, prompt, given)]
    for traced in rounds:
        assert_is_path(traced)
        assert len(traced["token_ids"]) <= 1 + traced["node_budget"]
        parents, survival = traced["parents"], traced["survival"]
        assert all(survival[i] <= survival[parents[i]] for i in range(1, len(parents)))
        if policy == "priced" and len(parents) > 1:
            assert min(survival) > traced["price"] - 1e-4
    assert any(len(traced["accepted"]) > 1 for traced in rounds)


def traced_rounds(pipeline: DirectPipeline, prompt: str, given: dict) -> list[dict]:
    """The rounds of one answer; what they tell adds up to its text."""
    sink = CollectingSink()
    client = ClientRequest(prompt.encode(), stream=True, request_parameters=given)
    pipeline.engine.submit(pipeline.parse(client), sink)
    while pipeline.engine.has_work:
        pipeline.engine.step()
    rounds = rounds_of(sink)
    tokens = all_emitted(rounds)
    assert len(tokens) == given["max_tokens"]
    # The end of a text may cut a character: one mark stands for its bytes.
    assert pipeline.decode(tokens).rstrip("\ufffd") == sink.text.rstrip("\ufffd")
    assert sum(len(t["accepted"]) for t in rounds) == sink.deltas[-1].report["accepted_tokens"]
    return rounds
