"""Policies beyond this machine: a discrete-event simulation of a server under load.

closed load   N requests are always there: goodput of every arm, from 1 to 256 sequences
open load     Poisson arrivals at shares of what plain decoding can bear: goodput and latency

Machines are roofline tables, or a profile that was measured; see bench/simulation/costs.py and
bench/simulation/text.py for what is assumed.
"""

import argparse
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from bench.harness.arguments import listed, positive
from bench.harness.benchmark import Benchmark, Options, Record, Result
from bench.harness.plots import plot_lines
from bench.simulation.costs import ACCELERATORS, LLAMA_8B, roofline
from bench.simulation.server import Arm, Job, Machine, Run, Simulation
from bench.simulation.text import Text, Texts
from canopy.costs.profile import Profile
from canopy.progress import progress_bar
from canopy.sampling import PolicyName

ARMS = (
    Arm("plain", PolicyName.OFF, 0),
    Arm("chain1", PolicyName.CHAIN, 1),
    Arm("chain3", PolicyName.CHAIN, 3),
    Arm("chain5", PolicyName.CHAIN, 5),
    Arm("topn16", PolicyName.TOPN, 16),
    Arm("topn48", PolicyName.TOPN, 48),
    Arm("survival", PolicyName.SURVIVAL, 48),
    Arm("priced", PolicyName.PRICED, 48),
)
_PROMPT_TOKENS = 200
_SHARES = (0.5, 0.8, 0.95, 1.2)  # of the requests that plain decoding can bear


@dataclass(frozen=True)
class Plan:
    """How much is simulated."""

    streams: list[int]
    jobs_per_stream: int
    answer_tokens: int
    open_streams: int  # places of the server under open load

    @staticmethod
    def of(options: Options) -> "Plan":
        """Short answers and few loads where it has to be quick."""
        streams = options.arguments.streams
        if options.is_quick:
            return Plan(streams or [1, 16], 2, 32, 4)
        return Plan(streams or [1, 2, 4, 8, 16, 32, 64, 128, 256], 3, 128, 64)


def run(options: Options) -> Result:
    """Simulate every machine, load and arm. Raises ValueError for a profile that is none."""
    plan, machines = Plan.of(options), _machines(options.arguments)
    error = options.arguments.error
    texts = {
        True: Texts(8, is_chain=True, error=error, seed=1),
        False: Texts(48, is_chain=False, error=error, seed=1),
    }
    closed: list[Record] = []
    opened: list[Record] = []
    steps = len(machines) * len(ARMS) * (len(plan.streams) + len(_SHARES))
    with progress_bar("simulations", steps) as advance:
        for name, machine in machines.items():
            for arm in ARMS:
                own = texts[arm.policy is PolicyName.CHAIN]
                for streams in plan.streams:
                    jobs = _jobs(plan.jobs_per_stream * streams, plan.answer_tokens, None)
                    done = Simulation(machine, arm, own, streams).run(jobs)
                    closed.append(_closed_record(name, streams, arm, done))
                    advance()
                for share in _SHARES:
                    jobs = _jobs(
                        6 * plan.open_streams,
                        plan.answer_tokens,
                        share * _plain_rate(machine, plan),
                    )
                    done = Simulation(machine, arm, own, plan.open_streams).run(jobs)
                    opened.append(_open_record(name, share, arm, done))
                    advance()
    _plot(closed, options.arguments.plots)
    return Result(_figures(closed), {"closed load": closed, "Poisson arrivals": opened})


def _machines(arguments: argparse.Namespace) -> dict[str, Machine]:
    """A drafter of a quarter of a plain step on accelerators; on a profile, what it measured."""
    machines: dict[str, Machine] = {}
    for name in arguments.machines:
        is_step_function = name.endswith("-padded")
        cost = roofline(ACCELERATORS[name.removesuffix("-padded")], LLAMA_8B, is_step_function)
        machines[name] = Machine(cost, 1.5, 0.02, 0.8)
    if arguments.profile:
        profile = Profile.from_json(json.loads(arguments.profile.read_text(encoding="utf-8")))
        machines["measured"] = Machine(
            profile.cost_model, 0.3, profile.draft_ms, profile.overhead_ms
        )
    return machines


def _jobs(num: int, answer_tokens: int, rate: float | None) -> list[Job]:
    """rate: arrivals a millisecond; None = all are there at once."""
    rng = np.random.default_rng(11)
    arrivals = np.cumsum(rng.exponential(1.0 / rate, num)) if rate else np.zeros(num)
    lengths = np.clip(rng.gamma(4.0, answer_tokens / 4.0, num), 8, 8 * answer_tokens).astype(int)
    return [
        Job(float(arrivals[i]), _PROMPT_TOKENS, int(lengths[i]), Text(seed=i)) for i in range(num)
    ]


def _plain_rate(machine: Machine, plan: Plan) -> float:
    """Requests a millisecond that plain decoding answers when every place is taken."""
    num = plan.open_streams
    step_ms = float(machine.cost.predict_ms(np.array([num]), num)[0]) + machine.overhead_ms
    prompt_ms = float(machine.cost.predict_ms(np.array([_PROMPT_TOKENS]), num)[0])
    return num / (plan.answer_tokens * step_ms + num * prompt_ms)


def _closed_record(machine: str, streams: int, arm: Arm, run: Run) -> Record:
    return {
        "machine": machine,
        "streams": streams,
        "arm": arm.name,
        "goodput": 1e3 * run.num_tokens / run.busy_ms,
        "nodes": run.num_nodes / run.num_rounds,
        "tau": run.num_tokens / run.num_rounds,
    }


def _open_record(machine: str, share: float, arm: Arm, run: Run) -> Record:
    latencies = np.array([job.end_ms - job.arrival_ms for job in run.jobs]) / 1e3
    first = np.array([job.first_ms - job.arrival_ms for job in run.jobs]) / 1e3
    return {
        "machine": machine,
        "load": share,
        "arm": arm.name,
        "goodput": 1e3 * run.num_tokens / run.end_ms,
        "p50_s": float(np.percentile(latencies, 50)),
        "p99_s": float(np.percentile(latencies, 99)),
        "first_p99_s": float(np.percentile(first, 99)),
        "nodes": run.num_nodes / run.num_rounds,
    }


def _figures(closed: Sequence[Record]) -> dict[str, float]:
    """Per machine, the worst ratio of priced to the best arm and to plain decoding."""
    figures: dict[str, float] = {}
    for machine in dict.fromkeys(record["machine"] for record in closed):
        ratios = [
            _ratios([r for r in closed if (r["machine"], r["streams"]) == (machine, streams)])
            for streams in dict.fromkeys(record["streams"] for record in closed)
        ]
        figures[f"priced_over_best_min_{machine}"] = min(best for best, _ in ratios)
        figures[f"priced_over_plain_min_{machine}"] = min(plain for _, plain in ratios)
    return figures


def _ratios(records: Sequence[Record]) -> tuple[float, float]:
    goodput = {record["arm"]: record["goodput"] for record in records}
    return goodput["priced"] / max(goodput.values()), goodput["priced"] / goodput["plain"]


def _plot(closed: Sequence[Record], folder: Path | None) -> None:
    if folder is None:
        return
    folder.mkdir(parents=True, exist_ok=True)
    for machine in dict.fromkeys(record["machine"] for record in closed):
        own = [record for record in closed if record["machine"] == machine]
        plain = {r["streams"]: r["goodput"] for r in own if r["arm"] == "plain"}
        relative = [r | {"goodput over plain": r["goodput"] / plain[r["streams"]]} for r in own]
        path = folder / f"simulate-{machine}.svg"
        plot_lines(relative, path, "streams", "goodput over plain", "arm", is_log=True)


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    names = [f"{name}{kind}" for name in ACCELERATORS for kind in ("", "-padded")]
    parser.add_argument("--machines", nargs="*", choices=names, default=["a100", "h100-padded"])
    parser.add_argument("--profile", type=Path, metavar="FILE", help="of `canopy profile`, too")
    parser.add_argument("--streams", type=listed(positive), metavar="N,N")
    parser.add_argument(
        "--error", type=float, default=0.0, help="of the drafter's own estimates, in log-odds"
    )
    parser.add_argument("--plots", type=Path, metavar="FOLDER", help="draw SVGs there")


BENCHMARK = Benchmark(
    "simulate",
    "goodput and latency of every policy on simulated machines, up to 256 sequences",
    run,
    _add_arguments,
)
