"""How fast trees follow the load: one busy stream, then many, then one again, on the real server.

The exported metrics are read all the time. After each step it is counted how many steps the
engine made until the ten steps that follow had, by their counters, two thirds of the step from
the nodes a round before it to those in the second half of the new phase behind them; and the same
for their price. Nodes depend on the text too, the price on the load alone. No step worth the name
is never followed.
"""

import argparse
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from bench.harness.arguments import positive
from bench.harness.benchmark import Benchmark, Options, Record, Result
from bench.harness.plots import plot_lines
from bench.harness.served_arms import LoadGenerator, ServedArm, served
from bench.harness.server_metrics import scrape
from canopy.config import Deployment, TreeConfig
from canopy.progress import progress_bar
from canopy.server.process import ServerProcess

_PRICED = ServedArm("priced", "priced", TreeConfig.node_budget)
_INTERVAL_S = 0.02
_FAMILIES = (
    "steps_total",
    "running_sequences",
    "rounds_total",
    "drafted_nodes_total",
    "node_budget",
    "node_price",
    "predicted_verify_ms",
    "measured_verify_ms",
)
_MAX_TOKENS = 128
_MEAN_TURNS = 10  # over which nodes a round are averaged: single trees differ by their text
_FOLLOWED = 2 / 3  # of a step
_LEAST_STEP = 0.25  # nodes a round
_LEAST_PRICE = 0.02  # in survival


@dataclass(frozen=True)
class Moment:
    """The metrics at one time."""

    seconds: float
    phase: int
    steps: float
    running: float
    rounds: float  # of all sequences, since the server started
    drafted: float  # nodes, likewise
    nodes: float  # a sequence, of the last step
    price: float
    predicted_ms: float
    measured_ms: float


def run(options: Options) -> Result:
    """Start a server of the deployment and change its load twice. Raises CannotStart."""
    many = options.arguments.streams
    phases = (
        [(1, 4.0), (many, 6.0), (1, 4.0)] if options.is_quick else [(1, 10), (many, 20), (1, 10)]
    )
    with served(_often_measured(options.deployment)) as server:
        crowd = LoadGenerator(server, _PRICED, options.prompts, _MAX_TOKENS)
        moments: list[Moment] = []
        with progress_bar("phases", len(phases)) as advance:
            for number, (streams, seconds) in enumerate(phases):
                crowd.resize(streams)
                moments += _watch(server, number, seconds)
                advance()
        crowd.close()
    records = [vars(moment) for moment in moments]
    if options.arguments.plot:
        _plot(records, options.arguments.plot)
    changes = {"up": (1, lambda n: n > many / 2), "down": (2, lambda n: n <= 1)}
    figures = {
        f"steps_to_follow_{name}": steps_to_follow(moments, *change, nodes_per_round, _LEAST_STEP)
        for name, change in changes.items()
    }
    prices = {
        f"price_steps_to_follow_{name}": steps_to_follow(moments, *change, price, _LEAST_PRICE)
        for name, change in changes.items()
    }
    figures["steps_to_follow"] = max(figures.values())
    return Result(figures | prices, {"every phase": _summaries(moments, phases)})


def _often_measured(deployment: Deployment) -> Deployment:
    """Its metrics are as good as new whenever they are read: a step is a few milliseconds."""
    server = replace(deployment.server, metrics_interval_s=_INTERVAL_S)
    return replace(deployment, server=server)


def _watch(server: ServerProcess, phase: int, seconds: float) -> list[Moment]:
    moments = []
    end_s = time.perf_counter() + seconds
    while (now_s := time.perf_counter()) < end_s:
        page = scrape(server.metrics_url)
        values = [page.total(f"canopy_{name}") for name in _FAMILIES]
        moments.append(Moment(now_s, phase, *values))
        time.sleep(_INTERVAL_S)
    return moments


def steps_to_follow(
    moments: Sequence[Moment],
    phase: int,
    has_changed: Callable[[float], bool],
    level: Callable[[Sequence[Moment]], float],
    least_step: float,
) -> float:
    """Steps from the first moment with the new load until most of the step of a level is made."""
    own = [m for m in moments if m.phase == phase]
    changed = [m for m in own if has_changed(m.running)]
    before = level(_second_half([m for m in moments if m.phase == phase - 1]))
    settled = level(_second_half(own))
    step = settled - before
    if not changed or abs(step) < least_step:
        return math.inf
    for number, moment in enumerate(changed):
        next_steps = [m for m in changed[number:] if m.steps <= moment.steps + _MEAN_TURNS]
        if (level(next_steps) - before) / step >= _FOLLOWED:
            return moment.steps - changed[0].steps
    return math.inf


def _second_half(moments: Sequence[Moment]) -> Sequence[Moment]:
    return moments[len(moments) // 2 :]


def price(moments: Sequence[Moment]) -> float:
    """Their mean price."""
    return float(np.mean([m.price for m in moments])) if moments else math.nan


def nodes_per_round(moments: Sequence[Moment]) -> float:
    """Between the first and the last of these moments; NaN without a round."""
    if len(moments) < 2:
        return math.nan
    rounds = moments[-1].rounds - moments[0].rounds
    return (moments[-1].drafted - moments[0].drafted) / rounds if rounds > 0 else math.nan


def _summaries(moments: Sequence[Moment], phases: Sequence[tuple[int, float]]) -> list[Record]:
    records: list[Record] = []
    for number, (streams, _) in enumerate(phases):
        own = [m for m in moments if m.phase == number]
        settled = _second_half(own)
        columns = ("nodes", "price", "predicted_ms", "measured_ms")
        medians = {name: float(np.median([vars(m)[name] for m in settled])) for name in columns}
        records.append({"phase": number, "streams": streams, **medians})
    return records


def _plot(records: Sequence[Record], path: Path) -> None:
    """Running sequences, nodes each and the price, over time."""
    start_s = records[0]["seconds"]
    scales = {"running": 1.0, "nodes": 1.0, "price": 10.0}
    names = {"running": "sequences", "nodes": "nodes each", "price": "price x 10"}
    lines = [
        {"s": r["seconds"] - start_s, "value": r[key] * scale, "what": names[key]}
        for key, scale in scales.items()
        for r in records
    ]
    plot_lines(lines, path, "s", "value", "what")


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--streams", type=positive, default=32, metavar="N")
    parser.add_argument("--plot", type=Path, metavar="FILE", help="draw an SVG")


BENCHMARK = Benchmark(
    "load_step",
    "steps until the node budget follows a step of the load",
    run,
    _add_arguments,
    reads_profile=True,
)
