"""The benchmarks `kernels` and `gpu` on the CPU and tiny shapes: rivals agree, formulas hold."""

from dataclasses import replace

import pytest
import torch

from bench.__main__ import main
from bench.gpu.gpu import figures as rate_figures
from bench.gpu.gpu import rate_records, step_bytes, step_records, step_times
from bench.gpu.kernel_cases import (
    ATTENTION_CASES,
    LINEAR_CASES,
    MOVE_CASES,
    SAMPLING_CASES,
    AttentionCase,
    AttentionInputs,
    LinearCase,
    MoveCase,
    SamplingCase,
)
from bench.gpu.kernel_rivals import (
    INVARIANT,
    OURS,
    attention_calls,
    linear_calls,
    move_calls,
    sampling_calls,
)
from bench.gpu.kernels import OPS, cases_of, copy_bandwidth, figures, measure
from bench.gpu.models import MODELS, kv_bytes_per_token, num_weights, random_decoder
from bench.gpu.rates import Load, serve
from bench.steps.cases import CONTEXT_LENGTH, Case
from canopy_kernels.attention.tree_attention import tree_attention_reference

SMALL = AttentionCase(2, 37, 6, num_heads=4, num_kv_heads=2, head_dim=16)
TINY = replace(
    MODELS["1b"],
    vocab_size=97,
    hidden_size=32,
    intermediate_size=48,
    num_layers=2,
    num_heads=4,
    num_kv_heads=2,
    head_dim=8,
)


def test_every_way_to_attend_gives_the_same():
    inputs = AttentionInputs.of(SMALL, torch.float32, "cpu")
    expected = tree_attention_reference(
        inputs.query, inputs.keys, inputs.values, inputs.rows, inputs.scale
    )
    calls = attention_calls(inputs)
    assert {OURS, INVARIANT, "sdpa with a mask", "gather, then sdpa", "flex attention"} == set(
        calls
    )
    for name, call in calls.items():
        assert (call() - expected).abs().max() < 1e-4, name


def test_every_way_to_move_gives_the_same():
    ours, rival = (
        call() for call in move_calls(MoveCase(3, 4, 2, 2, 8), torch.float32, "cpu").values()
    )
    assert torch.equal(ours, rival)
    for first in (0, 8, 16):  # slots 0, 2, 4, 6 of each sequence went to its slots 0 .. 3
        assert torch.equal(ours[:, [first + 2, first + 3]], ours[:, [first + 4, first + 6]])


def test_every_way_to_draw_gives_a_token_of_each_row():
    for call in sampling_calls(SamplingCase(3, 50), torch.float32, "cpu").values():
        drawn = call()
        assert drawn.shape == (3,)
        assert ((drawn >= 0) & (drawn < 50)).all()


def test_every_way_to_multiply_gives_the_same():
    ours, rival = (
        call() for call in linear_calls(LinearCase(3, 20, 7), torch.float32, "cpu").values()
    )
    assert ours.shape == (3, 7)
    assert (ours - rival).abs().max() < 1e-4


def test_bytes_are_those_of_the_tensors():
    inputs = AttentionInputs.of(SMALL, torch.bfloat16, "cpu")
    read = inputs.path_slots().numel() * 2 * 16 * 2  # keys and values of 2 heads
    assert SMALL.num_bytes(torch.bfloat16) == 2 * read + 2 * 2 * inputs.query.numel()
    assert MoveCase(1, 3, 2, 2, 8).num_bytes(torch.float32) == 4 * (2 * 3 * 2 * 8) * 4
    assert LinearCase(3, 5, 7).num_bytes(torch.bfloat16) == 2 * (3 * 5 + 5 * 7 + 3 * 7)
    assert SamplingCase(3, 50).num_bytes(torch.float16) == 300


def test_quick_takes_the_first_and_the_last_case():
    every = {"attention": ATTENTION_CASES, "commit": MOVE_CASES, "sampling": SAMPLING_CASES}
    every["linear"] = LINEAR_CASES
    for op in OPS:
        assert len(cases_of(op, torch.float32, "cpu", is_quick=False)) == len(every[op])
        assert len(cases_of(op, torch.float32, "cpu", is_quick=True)) == 2


def test_a_rival_that_cannot_run_is_listed():
    def fail():
        raise RuntimeError("no kernel\nfor this")

    times = iter([2.0, 4.0])
    calls = {OURS: lambda: None, "rival": lambda: None, "broken": fail}

    def milliseconds(call):
        call()
        return next(times)

    failed = []
    records = measure(({"rows": 3}, 8_000_000, lambda: calls), milliseconds, 8.0, failed)
    assert [(r["by"], r["gb_per_s"], r["of_bound"]) for r in records] == [
        (OURS, 4.0, 0.5),
        ("rival", 2.0, 0.25),
    ]
    assert [(r["op"], r["reason"]) for r in failed] == [("broken", "no kernel")]
    other_shape = {"by": "rival", "rows": 4, "ms": 0.1, "gb_per_s": 1.0, "of_bound": 0.1}
    found = figures({"attention": [*records, other_shape]}, 8.0)
    assert found == {
        "copy_gb_per_s": 8.0,
        "attention_least_of_bound": 0.5,
        "attention_least_lead": 2.0,
    }


def test_a_copy_reads_and_writes():
    assert copy_bandwidth("cpu", 1000, lambda call: call() is None or 0.001) == pytest.approx(2.0)


@pytest.mark.parametrize("name", ["kernels", "gpu"])
def test_without_a_gpu_one_line_says_so(name, monkeypatch, capsys):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert main([name]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines == [f"{name}: skipped, this machine has no CUDA device that torch can use"]


@pytest.mark.parametrize(("name", "billions"), [("1b", 1.24), ("3b", 3.21), ("8b", 7.5)])
def test_models_have_the_sizes_that_their_names_promise(name, billions):
    assert num_weights(MODELS[name]) == pytest.approx(billions * 1e9, rel=0.01)


def test_a_step_reads_weights_once_and_every_context():
    kept = kv_bytes_per_token(TINY, torch.float32)
    assert kept == 2 * 2 * 2 * 8 * 4
    one, two = (step_bytes(Case(n, 1), TINY, torch.float32) for n in (1, 2))
    assert two - one == (CONTEXT_LENGTH + 1) * kept
    assert one == num_weights(TINY) * 4 + two - one


@pytest.fixture(scope="module")
def decoder():
    return random_decoder(TINY, "float32", "cpu")


def test_step_times_of_a_random_model(decoder):
    cases, calls = [Case(1, 1), Case(2, 3)], []
    times = step_times(decoder, cases, "cpu", 2, lambda: calls.append(1))
    assert len(calls) == 4
    records = step_records(times, TINY, torch.float32, bound=10.0)
    assert [(r["tokens"], r["sequences"]) for r in records] == [(1, 1), (6, 2)]
    for record in records:
        assert record["of_bound"] == pytest.approx(record["bound_ms"] / record["ms"])
        assert record["ms"] > 0


LOAD = Load(num_sequences=2, prompt_length=20, num_tokens=25, num_nodes=8, num_right=3)


def test_trees_with_the_text_to_come_are_accepted_and_change_nothing(decoder):
    plain = serve(decoder, LOAD)
    assert plain.acceptance_length == 1.0
    assert [len(text) for text in plain.texts] == [25, 25]
    trees = serve(decoder, LOAD, plain.texts)
    assert trees.texts == plain.texts
    assert trees.acceptance_length == 4.0  # 24 tokens after the prompt's, 4 in each round


def test_rates_are_reported_by_number_of_sequences(decoder):
    rates = rate_records(decoder, LOAD)
    assert [r["decoding"] for r in rates] == ["plain", "trees"]
    assert rates[0]["over_plain"] == 1.0
    steps = [{"tokens": 1, "ms": 2.0, "of_bound": 0.5}]
    assert set(rate_figures(steps, rates)) == {
        "step1_ms",
        "step1_of_bound",
        "plain_tokens_per_s_2",
        "trees_tokens_per_s_2",
    }
