"""Goodput under load: streams that are always busy on the real server, arm beside arm.

Every stream asks again as soon as it was answered; tokens are counted as they reach the clients,
within a window that begins when the server has settled. The arms take turns in changing order,
and a ratio is the median of the ratios within one repeat.
"""

import argparse
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from bench.harness.arguments import listed, positive
from bench.harness.benchmark import Benchmark, Options, Record, Result
from bench.harness.plots import plot_lines
from bench.harness.prompts import Prompt
from bench.harness.served_arms import LoadGenerator, ServedArm, served, wait_until_idle
from bench.harness.server_metrics import scrape
from canopy.config import TreeConfig
from canopy.metrics_page import MetricsPage
from canopy.progress import progress_bar
from canopy.server.process import ServerProcess

PLAIN = "ar"
ARMS = (
    ServedArm(PLAIN, "off"),
    ServedArm("chain1", "chain", 1),
    ServedArm("chain3", "chain", 3),
    ServedArm("priced", "priced", TreeConfig.node_budget),
    ServedArm("tree16", "topn", 16),
    ServedArm("tree48", "topn", 48),
)
_FAR_OFF = ("tree16", "tree48")  # measured in the first repeat alone, so that a run stays short
_MAX_TOKENS = 96


@dataclass(frozen=True)
class Plan:
    """How long is measured."""

    streams: list[int]
    num_repeats: int
    settle_s: float
    window_s: float

    @staticmethod
    def of(options: Options) -> "Plan":
        own = options.arguments
        if options.is_quick:
            plan = Plan([1, 4], 1, 1.0, 2.0)
        else:
            plan = Plan([1, 2, 4, 8, 16, 32], 2, 2.0, 3.0)
        return Plan(
            own.streams or plan.streams,
            own.repeats or plan.num_repeats,
            plan.settle_s,
            own.window or plan.window_s,
        )

    def arms(self, repeat: int) -> list[ServedArm]:
        """Those of a repeat, in its order."""
        arms = [arm for arm in ARMS if repeat == 0 or arm.name not in _FAR_OFF]
        first = repeat % len(arms)
        return arms[first:] + arms[:first]

    @property
    def num_windows(self) -> int:
        """Of a run."""
        return len(self.streams) * sum(len(self.arms(r)) for r in range(self.num_repeats))


@dataclass(frozen=True)
class Sample:
    """One arm for one window."""

    goodput: float
    nodes: float  # a round
    tau: float
    build_ms: float  # of a step


Samples = dict[tuple[str, int], list[Sample]]  # by arm and streams


def run(options: Options) -> Result:
    """Start a server of the deployment and load it. Raises CannotStart."""
    plan = Plan.of(options)
    samples: Samples = {(arm.name, num): [] for num in plan.streams for arm in ARMS}
    with (
        served(options.deployment) as server,
        progress_bar("windows", plan.num_windows) as advance,
    ):
        for num in plan.streams:
            for repeat in range(plan.num_repeats):
                for arm in plan.arms(repeat):
                    sample = _measure(server, arm, options.prompts, num, plan)
                    samples[arm.name, num].append(sample)
                    advance()
    records = [_record(arm, num, own) for (arm, num), own in samples.items()]
    if options.arguments.plot:
        plot_lines(records, options.arguments.plot, "streams", "goodput", "arm", is_log=True)
    return Result(_figures(samples, plan.streams), {"tokens a second": records})


def _measure(
    server: ServerProcess, arm: ServedArm, prompts: Sequence[Prompt], streams: int, plan: Plan
) -> Sample:
    crowd = LoadGenerator(server, arm, prompts, _MAX_TOKENS)
    crowd.resize(streams)
    time.sleep(plan.settle_s)
    before, start_s = scrape(server.metrics_url), time.perf_counter()
    time.sleep(plan.window_s)
    after, end_s = scrape(server.metrics_url), time.perf_counter()
    goodput = crowd.goodput(start_s, end_s)
    crowd.close()
    wait_until_idle(server)
    return _sample(goodput, before, after)


def _sample(goodput: float, before: MetricsPage, after: MetricsPage) -> Sample:
    def gained(name: str, **labels: str) -> float:
        return after.total(f"canopy_{name}_total", **labels) - before.total(
            f"canopy_{name}_total", **labels
        )

    num_rounds = max(gained("rounds"), 1.0)
    build_s = gained("stage_seconds", stage="build")
    return Sample(
        goodput,
        gained("drafted_nodes") / num_rounds,
        1.0 + gained("accepted_tokens") / num_rounds,
        1e3 * build_s / max(gained("steps"), 1.0),
    )


def _record(arm: str, streams: int, samples: Sequence[Sample]) -> Record:
    return {
        "streams": streams,
        "arm": arm,
        "goodput": median(sample.goodput for sample in samples),
        "nodes": median(sample.nodes for sample in samples),
        "tau": median(sample.tau for sample in samples),
        "build_ms": median(sample.build_ms for sample in samples),
    }


def _figures(samples: Samples, streams: Sequence[int]) -> dict[str, float]:
    figures = {
        f"goodput_{arm}_{num}": median(sample.goodput for sample in own)
        for (arm, num), own in samples.items()
    }
    over = {
        (arm.name, num): _ratio(samples, num, arm.name)
        for num in streams
        for arm in ARMS
        if arm.name != "priced"
    }
    figures["priced_over_best_min"] = min(1.0, *over.values())
    figures["priced_over_ar_min"] = min(over[PLAIN, num] for num in streams)
    for num in streams:
        build_ms = median(sample.build_ms for sample in samples["priced", num])
        figures[f"build_ms_per_sequence_{num}"] = build_ms / num
    return figures


def _ratio(samples: Samples, streams: int, other: str) -> float:
    """Goodput of priced over another arm's, paired by repeat as far as both were measured."""
    pairs = zip(samples["priced", streams], samples[other, streams], strict=False)
    return median(own.goodput / its.goodput for own, its in pairs)


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--streams", type=listed(positive), metavar="N,N")
    parser.add_argument("--repeats", type=positive, metavar="N", help="windows of each arm")
    parser.add_argument("--window", type=positive, metavar="S", help="seconds of a window")
    parser.add_argument("--plot", type=Path, metavar="FILE", help="draw an SVG")


BENCHMARK = Benchmark(
    "load",
    "goodput of every arm on the server, by number of busy streams",
    run,
    _add_arguments,
    reads_profile=True,
)
