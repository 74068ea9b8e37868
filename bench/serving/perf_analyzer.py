"""perf_analyzer against the decoupled model over gRPC streams, way of decoding by way.

Closed loop: a number of requests is always under way. Open loop: requests come at a rate. While it
runs our own client asks on one stream more, so that its times stand beside perf_analyzer's.
"""

import argparse
import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

from bench.harness.arguments import listed, positive
from bench.harness.benchmark import Benchmark, Options, Record, Result
from bench.harness.plots import Panel, plot_panels
from bench.harness.served_arms import ServedArm, served
from bench.serving.perf_analyzer_probe import Probe, ProbeResult
from bench.serving.perf_analyzer_tool import Load, Outcome, PerfAnalyzer, SentRequest, input_data
from canopy.progress import progress_bar

ARMS = (
    ServedArm("ar", "off"),
    ServedArm("chain", "chain", 3),
    ServedArm("priced", "priced", 48),
)
_MODEL = "canopy"
_MIN_REQUESTS = 12  # in a run, however few are under way at once


@dataclass(frozen=True)
class Plan:
    """Which loads, and how much of each."""

    loads: list[Load]
    max_tokens: int

    @staticmethod
    def of(options: Options) -> "Plan":
        given, rounds = options.arguments, 2 if options.is_quick else 6
        closed = given.concurrency or ([1, 4] if options.is_quick else [1, 2, 4, 8, 16, 32])
        rates = given.rates or ([1.0] if options.is_quick else [0.5, 1.0, 2.0, 4.0])
        loads = [Load("closed", n, max(rounds * n, _MIN_REQUESTS)) for n in closed]
        loads += [Load("open", rate, max(int(10 * rate), _MIN_REQUESTS)) for rate in rates]
        return Plan(loads, 24 if options.is_quick else 96)


def run(options: Options) -> Result:
    """Every arm under every load. Raises CannotRun, CannotStart."""
    plan, tool, records = Plan.of(options), PerfAnalyzer(), []
    steps = len(plan.loads) * len(ARMS)
    with _server(options) as url, progress_bar("runs", steps) as advance:
        for number, load in enumerate(plan.loads):
            first = number % len(ARMS)
            for arm in ARMS[first:] + ARMS[:first]:
                records.append(_measure(tool, url, arm, load, plan.max_tokens, options))
                advance()
    if options.arguments.plot:
        plot_panels(list(_panels(records)), options.arguments.plot)
    return Result(_figures(records), {"perf_analyzer, and our own client beside it": records})


@contextmanager
def _server(options: Options) -> Iterator[str]:
    """The gRPC address of the server that is named, or of one of our own."""
    if options.arguments.server:
        yield options.arguments.server
        return
    with served(options.deployment) as server:
        yield server.grpc_url


def _measure(
    tool: PerfAnalyzer, url: str, arm: ServedArm, load: Load, max_tokens: int, options: Options
) -> Record:
    texts = [prompt.text for prompt in options.prompts]
    parameters = {"max_tokens": max_tokens, "temperature": 0.0, "ignore_eos": True}
    parameters |= arm.parameters
    with TemporaryDirectory() as folder:
        inputs = Path(folder) / "inputs.json"
        inputs.write_text(json.dumps(input_data(texts, parameters)), encoding="utf-8")
        with Probe(url, texts, parameters) as probe:
            outcome = tool.run(url, _MODEL, inputs, load, Path(folder))
    return record_of(arm.name, load, outcome, probe.result)


def record_of(arm: str, load: Load, outcome: Outcome, probe: ProbeResult) -> Record:
    """One line of the table; `own_` is what our client saw, `pa_` is perf_analyzer's word."""
    summary = outcome.summary
    return {
        "load": load.kind,
        "value": load.value,
        "arm": arm,
        "goodput": goodput(outcome.requests),
        **_percentiles("first_token_ms", outcome.requests, _first_token_s),
        **_percentiles("inter_token_ms", outcome.requests, _inter_token_s),
        **_percentiles("answer_ms", outcome.requests, lambda one: one.received_s[-1] - one.sent_s),
        "own_first_token_ms": 1e3 * probe.first_token_s,
        "own_inter_token_ms": 1e3 * probe.inter_token_s,
        "own_tokens_per_s": probe.tokens_per_s,
        "pa_p50_ms": 1e-3 * summary["p50 latency"],
        "pa_p99_ms": 1e-3 * summary["p99 latency"],
    }


def goodput(requests: Sequence[SentRequest]) -> float:
    """Tokens a second up to the last sending: after it fewer and fewer are under way.

    Where all are sent at once, up to the last response.
    """
    start_s, end_s = requests[0].sent_s, requests[-1].sent_s
    last_s = max(one.received_s[-1] for one in requests)
    if end_s - start_s < 0.5 * (last_s - start_s):
        end_s = last_s
    arrivals = [
        pair for one in requests for pair in zip(one.received_s, one.num_tokens, strict=True)
    ]
    return sum(num for at, num in arrivals if at <= end_s) / (end_s - start_s)


def _first_token_s(request: SentRequest) -> float:
    return request.received_s[0] - request.sent_s


def _inter_token_s(request: SentRequest) -> float:
    """A token's mean share of the time after the first response."""
    later = max(sum(request.num_tokens[1:]), 1)
    return (request.received_s[-1] - request.received_s[0]) / later


def _percentiles(
    name: str, requests: Sequence[SentRequest], seconds: Callable[[SentRequest], float]
) -> Record:
    values = [1e3 * seconds(one) for one in requests]
    return {f"{name}_p{q}": float(np.percentile(values, q)) for q in (50, 99)}


def _figures(records: Sequence[Record]) -> dict[str, float]:
    figures = {}
    for record in records:
        place = f"{record['arm']}_{record['load']}_{record['value']:g}"
        figures[f"goodput_{place}"] = record["goodput"]
        figures[f"answer_ms_p99_{place}"] = record["answer_ms_p99"]
    return figures


def _panels(records: Sequence[Record]) -> Iterator[Panel]:
    for kind, label in (("closed", "requests under way"), ("open", "requests a second")):
        own = [record for record in records if record["load"] == kind]
        if own:
            yield Panel(own, label, "tokens a second", ("goodput",))
            yield Panel(
                own, label, "ms to first token", ("first_token_ms_p50", "first_token_ms_p99")
            )
            yield Panel(own, label, "ms a token", ("inter_token_ms_p50", "inter_token_ms_p99"))


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--server", metavar="HOST:PORT", help="a running server's gRPC address")
    parser.add_argument("--concurrency", type=listed(positive), metavar="N,N", help="closed loop")
    parser.add_argument("--rates", type=listed(float), metavar="R,R", help="open loop, a second")
    parser.add_argument("--plot", type=Path, metavar="FILE", help="draw an SVG")


BENCHMARK = Benchmark(
    "perf_analyzer",
    "NVIDIA's load generator on the server, closed and open loop",
    run,
    _add_arguments,
    reads_profile=True,
)
