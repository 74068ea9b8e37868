"""The benchmark `threads`: two servers that differ in nothing but their thread_limits."""

from argparse import Namespace

import pytest

from bench.harness.benchmark import Options
from bench.harness.prompts import Prompt
from bench.serving import thread_limits
from bench.serving.thread_limits import FREE, LIMITED, Sample, figures, free_threads
from canopy.config import Deployment, TargetConfig
from canopy.server.runtime import THREAD_VARIABLES


def test_every_limit_is_lifted():
    free = free_threads()
    assert set(free) == set(THREAD_VARIABLES)
    assert all(free[name] != value or value == "1" for name, value in THREAD_VARIABLES.items())
    assert free["OMP_WAIT_POLICY"] == "active"


def test_ratios_are_paired_by_repeat():
    samples = {
        (LIMITED, 8): [Sample(10.0, 1.0), Sample(40.0, 1.0), Sample(90.0, 1.0)],
        (FREE, 8): [Sample(5.0, 1.0), Sample(10.0, 1.0), Sample(30.0, 1.0)],
    }
    assert figures(samples, [8]) == {"limited_over_free_8": 3.0}


@pytest.mark.server
def test_both_servers_answer_under_load(tiny_folder):
    target = TargetConfig(model=str(tiny_folder), dtype="float32")
    options = Options(
        Deployment(target=target),
        [Prompt("qa", "abcabc")],
        is_quick=True,
        arguments=Namespace(streams=[2], repeats=1),
    )
    result = thread_limits.run(options)
    assert result.figures["limited_over_free_2"] > 0
    (records,) = result.details.values()
    assert {record["threads"] for record in records} == {LIMITED, FREE}
    assert all(record["goodput"] > 0 and record["verify_ms"] > 0 for record in records)
    assert THREAD_VARIABLES["OMP_WAIT_POLICY"] == "passive"
