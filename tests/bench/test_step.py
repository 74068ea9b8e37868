"""The benchmark `step` on a tiny random model: shapes and relations of the numbers, no times."""

from argparse import Namespace

import pytest

from bench.harness.benchmark import Options
from bench.harness.prompts import Prompt
from bench.peers.arm import CannotRun
from bench.peers.llamacpp import PLAIN
from bench.steps import step
from bench.steps.cases import BLOCK_SIZE, Case, Layout, StepTimer, step_of
from bench.steps.step import CASES, ONE, figures, measure, step_records
from canopy.config import Deployment, TargetConfig


def test_ratios_are_paired_within_a_repeat():
    times = {
        ("int8", ONE): [0.001, 0.010, 0.002],
        ("int8", Case(1, 16)): [0.002, 0.020, 0.004],
        ("int8", Case(32, 1)): [0.003, 0.030, 0.006],
        (PLAIN, ONE): [0.002, 0.020, 0.004],
    }
    assert figures(times, "int8") == pytest.approx(
        {
            "step1_ms": 2.0,
            "step16_over_step1": 2.0,
            "step32_sequences_over_step1": 3.0,
            "step1_over_llamacpp": 0.5,
        }
    )
    assert [record["over_one_row"] for record in step_records(times)] == pytest.approx(
        [1.0, 2.0, 3.0, 1.0]
    )


def test_everything_is_measured_once_a_repeat_and_the_first_one_is_dropped():
    calls = []

    def go(name):
        return lambda: calls.append(name) or float(len(calls))

    advances = []
    goes = {("a", ONE): go("a"), ("b", ONE): go("b")}
    times = measure(goes, 3, {}, lambda: advances.append(1))
    assert len(calls) == len(advances) == 8
    assert {name for name, _ in times} == {"a", "b"}
    assert all(len(seconds) == 3 for seconds in times.values())
    assert not {1.0, 2.0} & {s for seconds in times.values() for s in seconds}


def test_a_peer_that_fails_on_the_way_is_listed_and_leaves_no_times():
    tries = iter([1.0, 1.0])

    def fail():
        for seconds in tries:
            return seconds
        raise CannotRun("fell over")

    reasons = {}
    goes = {("ours", ONE): lambda: 1.0, (PLAIN, ONE): fail}
    times = measure(goes, 4, reasons, lambda: None)
    assert times == {("ours", ONE): [1.0] * 4}
    assert reasons == {PLAIN: "fell over"}


@pytest.mark.parametrize("case", CASES)
def test_rows_of_a_step_have_slots_of_their_own_behind_their_context(case):
    layout = Layout.of(CASES)
    segments = step_of(case, layout, vocab_size=50)
    assert len(segments) == case.num_sequences
    slots = [slot for segment in segments for slot in segment.slots(BLOCK_SIZE).tolist()]
    contexts = [layout.context_slots(s).tolist() for s in range(layout.num_sequences)]
    taken = slots + [slot for context in contexts for slot in context]
    assert len(slots) == case.num_sequences * case.num_rows
    assert len(set(taken)) == len(taken)
    assert max(taken) < layout.num_blocks * BLOCK_SIZE
    assert all((segment.parents < range(case.num_rows)).all() for segment in segments)


@pytest.fixture(scope="module")
def target(tiny_folder):
    return TargetConfig(model=str(tiny_folder), dtype="float32", num_threads=1)


def test_every_sequence_continues_the_same_context(target):
    cases = [Case(1, 3), Case(3, 1)]
    keys, layout = StepTimer.of_target(target, cases).cache.keys, Layout.of(cases)
    first = keys[:, layout.context_slots(0)]
    assert first.abs().sum(dim=(0, 2, 3)).min() > 0
    for sequence in (1, 2):
        assert (keys[:, layout.context_slots(sequence)] == first).all()


def test_step_measures_the_deployments_type_and_lists_what_cannot_run(target, monkeypatch):
    monkeypatch.setattr(step, "CASES", [Case(1, 1), Case(1, 16), Case(32, 1)])
    arguments = Namespace(dtypes=["float32", "bfloat16"], repeats=2, phases=False, synthetic=None)
    options = Options(Deployment(target=target), [Prompt("qa", "a")], arguments=arguments)
    result = step.run(options)
    assert set(result.figures) == {
        "step1_ms",
        "step16_over_step1",
        "step32_sequences_over_step1",
        "prompt_ms_per_token",
        "cores_elsewhere",
    }
    records = result.details["forward of one step"]
    assert {record["decoder"] for record in records} == {"float32", "bfloat16"}
    assert len(records) == 6
    assert [r["arm"] for r in result.details["not measured"]] == [PLAIN]
