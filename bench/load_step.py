"""How fast trees follow the load: one busy stream, then many, then one again, on the real server.

The exported metrics are read all the time. After each step it is counted how many turns the
engine made before the node budget came into the band, from the tenth to the ninetieth percentile,
in which it stays for the second half of that phase.
"""

import argparse
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from bench.arguments import positive
from bench.benchmark import Benchmark, Options, Record, Result
from bench.plots import plot_lines
from bench.progress import progress_bar
from bench.served_arms import Crowd, ServedArm, served
from bench.server_metrics import scrape
from canopy.serve.process import ServerProcess

_PRICED = ServedArm("priced", "priced", 48)
_INTERVAL_S = 0.03
_MAX_TOKENS = 128


@dataclass(frozen=True)
class Moment:
    """The metrics at one time."""

    seconds: float
    phase: int
    turns: float
    running: float
    nodes: float
    theta: float
    predicted_ms: float
    measured_ms: float


def run(options: Options) -> Result:
    """Start a server of the deployment and change its load twice. Raises CannotStart."""
    many = options.arguments.streams
    phases = (
        [(1, 4.0), (many, 6.0), (1, 4.0)] if options.is_quick else [(1, 10), (many, 20), (1, 10)]
    )
    with served(options.deployment) as server:
        crowd = Crowd(server, _PRICED, options.prompts, _MAX_TOKENS)
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
    figures = {
        "turns_to_follow_up": turns_to_follow(moments, 1, lambda running: running > many / 2),
        "turns_to_follow_down": turns_to_follow(moments, 2, lambda running: running <= 1),
    }
    figures["turns_to_follow"] = max(figures.values())
    return Result(figures, {"every phase": _summaries(moments, phases)})


def _watch(server: ServerProcess, phase: int, seconds: float) -> list[Moment]:
    moments = []
    end_s = time.perf_counter() + seconds
    while (now_s := time.perf_counter()) < end_s:
        page = scrape(server.metrics_url)
        names = ("running_sequences", "node_budget", "price_theta", "predicted_step_ms")
        gauges = [page.total(f"canopy_{name}") for name in (*names, "measured_step_ms")]
        moments.append(Moment(now_s, phase, page.total("canopy_turns_total"), *gauges))
        time.sleep(_INTERVAL_S)
    return moments


def turns_to_follow(
    moments: Sequence[Moment], phase: int, has_changed: Callable[[float], bool]
) -> float:
    """Turns from the first moment with the new load to the first one within the settled band."""
    own = [m for m in moments if m.phase == phase]
    changed = [m for m in own if has_changed(m.running)]
    if not changed:
        return float("inf")
    settled = [m.nodes for m in own[len(own) // 2 :]]
    low, high = np.percentile(settled, (10.0, 90.0))
    first = next((m for m in changed if low <= m.nodes <= high), None)
    return first.turns - changed[0].turns if first else float("inf")


def _summaries(moments: Sequence[Moment], phases: Sequence[tuple[int, float]]) -> list[Record]:
    records: list[Record] = []
    for number, (streams, _) in enumerate(phases):
        own = [m for m in moments if m.phase == number]
        settled = own[len(own) // 2 :]
        columns = ("nodes", "theta", "predicted_ms", "measured_ms")
        medians = {name: float(np.median([vars(m)[name] for m in settled])) for name in columns}
        records.append({"phase": number, "streams": streams, **medians})
    return records


def _plot(records: Sequence[Record], path: Path) -> None:
    """Running sequences, nodes each and the price, over time."""
    start_s = records[0]["seconds"]
    scales = {"running": 1.0, "nodes": 1.0, "theta": 10.0}
    names = {"running": "sequences", "nodes": "nodes each", "theta": "price x 10"}
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
    "load_step", "turns until the node budget follows a step of the load", run, _add_arguments
)
