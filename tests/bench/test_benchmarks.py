"""Benchmarks on a tiny random model: shapes and relations of the numbers, no times."""

from argparse import Namespace

import pytest
from training.drafter_corpus import make_drafter

from bench.acceptance import acceptance
from bench.harness.benchmark import Options
from bench.harness.local_engine import LocalEngine
from bench.harness.prompts import Prompt
from bench.serving import engine_step
from bench.serving.engine_step_plan import Plan
from bench.serving.engine_step_served import measure_served
from canopy.config import CacheConfig, Deployment, LimitsConfig, TargetConfig, TreeConfig
from canopy.errors import InvalidRequest
from canopy.models.block_drafter.checkpoint import save_drafter

PROMPTS = [
    Prompt("qa", "abcabcabcabc"),
    Prompt("code", "for i in x: for i in y:"),
    Prompt("qa", "to be or not to be"),
]
UNUSED = {
    "drafter": None,
    "small_drafter": None,
    "replay": False,
    "texts": None,
    "real_limit": None,
    "draft_share": False,
    "plots": None,
}


@pytest.fixture(scope="module")
def deployment(tiny_folder):
    return Deployment(
        target=TargetConfig(model=str(tiny_folder), num_threads=1),
        cache=CacheConfig(num_tokens=2048),
        limits=LimitsConfig(max_running=2),
        tree=TreeConfig(policy="topn", node_budget=8),  # drafts in every step
    )


def test_more_requests_than_places_are_all_answered(deployment):
    engine, ended = LocalEngine(deployment), []
    requests = [
        engine.chat_request(prompt.text, temperature=0, ignore_eos=True, max_tokens=count)
        for prompt, count in zip(PROMPTS, (3, 9, 6), strict=True)
    ]
    answers = engine.run(requests, on_end=lambda: ended.append(1))
    assert [answer.num_tokens for answer in answers] == [3, 9, 6]
    assert len(ended) == len(requests)
    assert engine.metrics.used_blocks == 0
    assert engine.metrics.free_blocks == deployment.cache.num_blocks


def test_a_request_that_cannot_fit_is_refused(deployment):
    with pytest.raises(InvalidRequest):
        LocalEngine(deployment).chat_request("x" * 2000)


@pytest.fixture(scope="module")
def acceptance_result(deployment):
    arguments = Namespace(
        policies=["chain", "topn"],
        node_budgets=[4],
        temperatures=[0.0, 0.7],
        modes=["coupled", "rejection"],
        max_tokens=12,
        sources=[],
        **UNUSED,
    )
    return acceptance.run(Options(deployment, PROMPTS, is_quick=True, arguments=arguments))


def test_acceptance_reports_every_policy_mode_and_category(acceptance_result):
    modes = ["", "_coupled_t0.7", "_rejection_t0.7"]
    names = {
        f"{quantity}_{policy}{mode}"
        for quantity in ("tau", "nodes", "accepted_per_node")
        for policy in ("chain", "topn")
        for mode in modes
    }
    assert set(acceptance_result.figures) == names | {
        "lookup_chain_tau",
        *(f"lookup4_tau{mode}" for mode in modes),
    }
    by_policy, by_category, _ = acceptance_result.details.values()
    assert len(by_policy) == 6
    assert {record["category"] for record in by_category} == {"qa", "code"}


def test_acceptance_figures_keep_their_relations(acceptance_result):
    by_policy, by_category, _ = acceptance_result.details.values()
    for record in by_policy + by_category:
        assert 1.0 <= record["acceptance_length"] <= 1.0 + record["nodes_per_round"]
        assert record["nodes_per_round"] <= record["node_budget"]
        accepted = record["accepted_per_node"] * record["nodes_per_round"]
        assert record["acceptance_length"] == pytest.approx(1.0 + accepted)
    parts = [sum(r["rounds"] for r in by_category if r["policy"] == p) for p in ("chain", "topn")]
    whole = [sum(r["rounds"] for r in by_policy if r["policy"] == p) for p in ("chain", "topn")]
    assert parts == whole


def test_acceptance_compares_sets_of_sources(deployment, tiny_folder, tmp_path):
    save_drafter(make_drafter(tiny_folder), tmp_path)
    arguments = Namespace(
        policies=["topn"],
        node_budgets=[3],
        temperatures=[0.0],
        modes=[],
        max_tokens=12,
        sources=["lookup", "neural", "all"],
        **UNUSED | {"drafter": tmp_path},
    )
    result = acceptance.run(Options(deployment, PROMPTS, is_quick=True, arguments=arguments))
    by_policy, *_ = result.details.values()
    nodes = {record["sources"]: record["nodes_per_round"] for record in by_policy}
    assert list(nodes) == ["lookup", "neural", "all"]
    assert nodes["neural"] > 2.0  # but for rounds near the end, as many as asked for
    assert nodes["all"] >= nodes["lookup"]
    assert {f"{sources}3_tau" for sources in nodes} <= set(result.figures)


def test_a_step_reports_every_stage_at_every_number_of_sequences(deployment):
    arguments = Namespace(sequences=[1, 2], direct_only=True)
    result = engine_step.run(Options(deployment, PROMPTS, is_quick=True, arguments=arguments))
    stages = ("draft", "build", "verify", "commit", "step", "overhead", "plain_step")
    for count in (1, 2):
        assert all(result.figures[f"{stage}_ms_{count}"] > 0 for stage in stages)
        assert result.figures[f"speedup_{count}"] > 0
    (records,) = result.details.values()
    plain = [record for record in records if record["decoding"] == "plain"]
    assert [record["tokens_per_sequence"] for record in plain] == [1.0, 1.0]
    assert all(record["steps"] > 0 for record in records)


@pytest.mark.server
def test_a_step_finds_calls_and_responses_on_the_real_server(deployment):
    result = measure_served(deployment, PROMPTS, Plan([1, 2], num_repeats=1, max_tokens=8))
    for count in (1, 2):
        assert result.figures[f"served_step_ms_{count}"] > 0
        assert result.figures[f"bls_call_ms_{count}"] > 0
        assert f"send_ms_{count}" in result.figures
    (records,) = result.details.values()
    for record in records:
        stages = ("draft_ms", "build_ms", "verify_ms", "commit_ms")
        assert sum(record[stage] for stage in stages) <= record["step_ms"]
        assert record["steps"] >= 2
