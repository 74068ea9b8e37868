"""What the limits on threads bring: the server as it is beside one whose processes may do as they
like, both under load.

Four model processes and the load generator share the machine. `canopy serve` gives the verifier
the cores and the others one thread each, which sleep when they wait. The other server's libraries
take a thread a core in every process, and those spin when they wait. Both servers stand ready; the
load goes to one and then to the other, in changing order, and a ratio is paired by repeat.
"""

import argparse
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from statistics import median
from unittest.mock import patch

from bench.harness.arguments import listed, positive
from bench.harness.benchmark import Benchmark, Options, Record, Result
from bench.harness.prompts import Prompt
from bench.harness.served_arms import LoadGenerator, ServedArm, served, wait_until_idle
from bench.harness.server_metrics import scrape
from bench.peers.samples import arm_order
from canopy.config import Deployment, TreeConfig
from canopy.cpus import usable_cpus
from canopy.progress import progress_bar
from canopy.server import runtime
from canopy.server.process import ServerProcess

LIMITED, FREE = "limited", "free"
_ARM = ServedArm("priced", "priced", TreeConfig.node_budget)
_STREAMS, _QUICK_STREAMS = [1, 8], [2]
_REPEATS, _QUICK_REPEATS = 4, 1
_SETTLE_S, _WINDOW_S, _QUICK_WINDOW_S = 1.0, 4.0, 1.0
_MAX_TOKENS = 96


@dataclass(frozen=True)
class Sample:
    """One server for one window."""

    goodput: float
    verify_ms: float  # of a step


Samples = dict[tuple[str, int], list[Sample]]  # by server and streams


def free_threads() -> dict[str, str]:
    """The variables of runtime.THREAD_VARIABLES, all for the speed of a process alone."""
    cores = str(usable_cpus())
    counts = {name: cores for name in runtime.THREAD_VARIABLES if name.endswith("_NUM_THREADS")}
    spinning = {"OMP_WAIT_POLICY": "active", "KMP_BLOCKTIME": "infinite"}
    return {**counts, **spinning, "TOKENIZERS_PARALLELISM": "true"}


def run(options: Options) -> Result:
    """Start both servers and load them in turn. Raises CannotStart."""
    own, is_quick = options.arguments, options.is_quick
    streams = own.streams or (_QUICK_STREAMS if is_quick else _STREAMS)
    repeats = own.repeats or (_QUICK_REPEATS if is_quick else _REPEATS)
    window_s = _QUICK_WINDOW_S if is_quick else _WINDOW_S
    samples: Samples = {(name, num): [] for num in streams for name in (LIMITED, FREE)}
    with ExitStack() as stack:
        servers = {
            LIMITED: stack.enter_context(served(options.deployment)),
            FREE: stack.enter_context(_served_freely(options.deployment)),
        }
        advance = stack.enter_context(progress_bar("windows", len(samples) * repeats))
        for num in streams:
            for repeat in range(repeats):
                for name in arm_order(list(servers), repeat):
                    sample = _measure(servers[name], options.prompts, num, window_s)
                    samples[name, num].append(sample)
                    advance()
    records = [_record(name, num, taken) for (name, num), taken in samples.items()]
    return Result(figures(samples, streams), {"a server under load": records})


@contextmanager
def _served_freely(deployment: Deployment) -> Iterator[ServerProcess]:
    with (
        patch.dict(runtime.THREAD_VARIABLES, free_threads(), clear=True),
        served(deployment) as server,
    ):
        yield server


def _measure(
    server: ServerProcess, prompts: Sequence[Prompt], streams: int, window_s: float
) -> Sample:
    crowd = LoadGenerator(server, _ARM, prompts, _MAX_TOKENS)
    crowd.resize(streams)
    time.sleep(_SETTLE_S)
    before, start_s = scrape(server.metrics_url), time.perf_counter()
    time.sleep(window_s)
    after, end_s = scrape(server.metrics_url), time.perf_counter()
    goodput = crowd.goodput(start_s, end_s)
    crowd.close()
    wait_until_idle(server)
    steps = after.total("canopy_steps_total") - before.total("canopy_steps_total")
    verify_s = after.total("canopy_stage_seconds_total", stage="verify") - before.total(
        "canopy_stage_seconds_total", stage="verify"
    )
    return Sample(goodput, 1e3 * verify_s / max(steps, 1.0))


def figures(samples: Samples, streams: Sequence[int]) -> dict[str, float]:
    """Above 1 the limits pay."""
    return {
        f"limited_over_free_{num}": median(
            limited.goodput / free.goodput
            for limited, free in zip(samples[LIMITED, num], samples[FREE, num], strict=True)
        )
        for num in streams
    }


def _record(name: str, streams: int, samples: Sequence[Sample]) -> Record:
    return {
        "streams": streams,
        "threads": name,
        "goodput": median(sample.goodput for sample in samples),
        "verify_ms": median(sample.verify_ms for sample in samples),
    }


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--streams", type=listed(positive), metavar="N,N")
    parser.add_argument("--repeats", type=positive, metavar="N", help="windows of each server")


BENCHMARK = Benchmark(
    "threads",
    "the server's limits on threads beside none, under load",
    run,
    _add_arguments,
    reads_profile=True,
)
