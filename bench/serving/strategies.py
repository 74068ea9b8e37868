"""Every policy on the real server, one stream: nodes, verify time, acceptance and net speed.

All arms answer the same prompts greedily, so they write the same text; groups of prompts go
through the arms in changing order. Prose at temperature 0.8, where drafting hardly pays, has a race
of its own, plain against priced, with prompts that the server knows already. A speed-up is the
median over groups of the ratio to plain decoding within the group, the time being the client's.
"""

import argparse
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from statistics import median

from bench.harness.arguments import positive
from bench.harness.benchmark import Benchmark, Options, Record, Result
from bench.harness.prompts import Prompt
from bench.harness.served_arms import UNIFORM_NODES, ServedArm, ask, served
from bench.harness.server_metrics import scrape_idle
from canopy.config import TreeConfig
from canopy.progress import progress_bar
from canopy.server.process import ServerProcess
from canopy_client import Client

PLAIN = ServedArm("ar", "off")
CHAINS = tuple(ServedArm(f"chain{num}", "chain", num) for num in (2, 3, 5, 8))
ARMS = (
    PLAIN,
    *CHAINS,
    ServedArm("uniform", "uniform", UNIFORM_NODES),
    ServedArm("threshold", "threshold", 48),
    ServedArm("entropy", "entropy", 48),
    ServedArm("topn", "topn", 16),
    ServedArm("static_optimal", "static_optimal", 16),
    ServedArm("survival", "survival", 48),
    ServedArm("priced", "priced", TreeConfig.node_budget),
)
PROSE_ARMS = (
    ServedArm("ar_prose", "off", temperature=0.8),
    ServedArm("priced_prose", "priced", TreeConfig.node_budget, temperature=0.8),
)
PROSE = ("chat", "qa")  # categories whose sampled answers hardly repeat
_GROUP = 4  # prompts


@dataclass
class Group:
    """One arm's answers to one group of prompts."""

    seconds: float = 0.0
    num_tokens: int = 0
    num_rounds: int = 0
    num_drafted: int = 0
    num_accepted: int = 0
    verify_ms: float = 0.0  # of a step
    build_ms: float = 0.0
    draft_ms: float = 0.0
    total_ms: float = 0.0

    @property
    def asking_share(self) -> float:
        """Of a step, for drafting and selecting."""
        return (self.draft_ms + self.build_ms) / max(self.total_ms, 1e-6)

    @property
    def speed(self) -> float:
        return self.num_tokens / self.seconds


@dataclass
class Outcome:
    """All groups of one arm."""

    groups: list[Group] = field(default_factory=list)

    def total(self, name: str) -> float:
        return sum(getattr(group, name) for group in self.groups)

    @property
    def nodes_per_round(self) -> float:
        return self.total("num_drafted") / max(self.total("num_rounds"), 1)

    @property
    def acceptance_length(self) -> float:
        return 1.0 + self.total("num_accepted") / max(self.total("num_rounds"), 1)


def run(options: Options) -> Result:
    """Start a server of the deployment and race the arms. Raises CannotStart."""
    max_tokens = options.arguments.max_tokens or (24 if options.is_quick else 64)
    prompts = options.prompts[: 2 * _GROUP] if options.is_quick else options.prompts
    groups = _groups(prompts)
    prose = _groups([prompt for prompt in prompts if prompt.category in PROSE])
    with (
        served(options.deployment) as server,
        Client(server.grpc_url) as client,
        progress_bar("groups", _num_answered(groups, prose)) as advance,
    ):
        for arm in ARMS:
            ask(client, "Say hello.", arm, 8)
        outcomes = _race(server, client, ARMS, groups, max_tokens, advance)
        for prompt in (prompt for group in prose for prompt in group):
            ask(client, prompt.text, PLAIN, 1)
        sampled = _race(server, client, PROSE_ARMS, prose, max_tokens, advance)
    details = {"one stream": _records(outcomes, PLAIN.name)}
    figures = _figures(outcomes)
    if prose:
        details["prose, temperature 0.8"] = _records(sampled, "ar_prose")
        figures["priced_over_ar_prose"] = _speed_ratio(sampled, "priced_prose", "ar_prose")
        shares = [group.asking_share for group in sampled["priced_prose"].groups]
        figures["asking_share_prose"] = median(shares)
    return Result(figures, details)


def _groups(prompts: Sequence[Prompt]) -> list[Sequence[Prompt]]:
    return [prompts[i : i + _GROUP] for i in range(0, len(prompts), _GROUP)]


def _num_answered(groups: Sequence[object], prose: Sequence[object]) -> int:
    return len(ARMS) * len(groups) + len(PROSE_ARMS) * len(prose)


def _race(
    server: ServerProcess,
    client: Client,
    arms: tuple[ServedArm, ...],
    groups: Sequence[Sequence[Prompt]],
    max_tokens: int,
    advance: Callable[[], None],
) -> dict[str, Outcome]:
    outcomes = {arm.name: Outcome() for arm in arms}
    for number, prompts in enumerate(groups):
        first = number % len(arms)
        for arm in arms[first:] + arms[:first]:
            outcomes[arm.name].groups.append(_answer(server, client, prompts, arm, max_tokens))
            advance()
    return outcomes


def _answer(
    server: ServerProcess,
    client: Client,
    prompts: Sequence[Prompt],
    arm: ServedArm,
    max_tokens: int,
) -> Group:
    before = scrape_idle(server.metrics_url, 1)
    num_finished = int(before.total("canopy_requests_finished_total")) + len(prompts)
    group = Group()
    for prompt in prompts:
        start = time.perf_counter()
        answer = ask(client, prompt.text, arm, max_tokens)
        group.seconds += time.perf_counter() - start
        group.num_tokens += answer.num_output_tokens
        group.num_rounds += answer.speculation["rounds"]
        group.num_drafted += answer.speculation["drafted_nodes"]
        group.num_accepted += answer.speculation["accepted_tokens"]
    after = scrape_idle(server.metrics_url, num_finished)
    num_steps = after.total("canopy_steps_total") - before.total("canopy_steps_total")
    for stage in ("verify", "build", "draft", "total"):
        seconds = [p.total("canopy_stage_seconds_total", stage=stage) for p in (before, after)]
        setattr(group, f"{stage}_ms", 1e3 * (seconds[1] - seconds[0]) / max(num_steps, 1))
    return group


def _speed_ratio(outcomes: dict[str, Outcome], arm: str, other: str) -> float:
    pairs = zip(outcomes[arm].groups, outcomes[other].groups, strict=True)
    return median(own.speed / its.speed for own, its in pairs)


def _records(outcomes: dict[str, Outcome], plain: str) -> list[Record]:
    return [
        {
            "arm": name,
            "nodes_per_round": outcome.nodes_per_round,
            "verify_ms": median(group.verify_ms for group in outcome.groups),
            "build_ms": median(group.build_ms for group in outcome.groups),
            "acceptance_length": outcome.acceptance_length,
            "tokens_per_s": outcome.total("num_tokens") / outcome.total("seconds"),
            "speedup": _speed_ratio(outcomes, name, plain),
        }
        for name, outcome in outcomes.items()
    ]


def _figures(outcomes: dict[str, Outcome]) -> dict[str, float]:
    figures: dict[str, float] = {}
    for record in _records(outcomes, PLAIN.name):
        name = record["arm"]
        figures[f"speedup_{name}"] = record["speedup"]
        figures[f"nodes_{name}"] = record["nodes_per_round"]
        figures[f"tau_{name}"] = record["acceptance_length"]
        figures[f"verify_ms_{name}"] = record["verify_ms"]
    tuned = max((arm.name for arm in CHAINS), key=lambda name: figures[f"speedup_{name}"])
    figures["priced_over_chain"] = _speed_ratio(outcomes, "priced", tuned)
    figures["build_ms_1"] = median(group.build_ms for group in outcomes["priced"].groups)
    return figures


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--max-tokens", type=positive, metavar="N", help="tokens of an answer")


BENCHMARK = Benchmark(
    "strategies",
    "nodes, verify time, acceptance and speed-up of every policy on the server, one stream",
    run,
    _add_arguments,
    reads_profile=True,
)
