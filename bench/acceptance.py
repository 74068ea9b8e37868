"""How much of what is drafted the target accepts, by policy and by category of prompt.

    acceptance length  tau = 1 + accepted / rounds     (the bonus token counts)
    nodes per round          drafted / rounds          (the anchor does not)
    accepted per node        accepted / drafted

over all rounds of all answers, the undrafted first round of each answer included.
"""

import argparse
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from itertools import product
from pathlib import Path

from bench.arguments import listed, one_of, positive
from bench.benchmark import Benchmark, Options, Record, Result
from bench.local_engine import Answer, LocalEngine
from bench.progress import progress_bar
from bench.prompts import Prompt
from canopy.config import ACCEPTANCE_MODES, POLICIES, Deployment

_MAX_TOKENS = 96
_QUICK_MAX_TOKENS = 32
_SAMPLING_MODES = tuple(mode for mode in ACCEPTANCE_MODES if mode != "greedy")
_ALL = "all"
# Names of sets of proposal sources, and the source of a deployment that stands for each.
SOURCE_SETS = {"lookup": "lookup", "neural": "markov", "marginal": "block", "all": "all"}


@dataclass(frozen=True)
class Setting:
    """One way to speculate; the mode is "greedy" exactly at temperature 0."""

    sources: str  # a name of SOURCE_SETS, or the deployment's own source
    policy: str
    node_budget: int
    temperature: float
    mode: str

    @property
    def suffix(self) -> str:
        """Of a figure's name: nothing for greedy."""
        return "" if self.mode == "greedy" else f"_{self.mode}_t{self.temperature:g}"


@dataclass
class Tally:
    """Rounds and nodes, added up."""

    num_rounds: int = 0
    num_drafted: int = 0
    num_accepted: int = 0

    def add(self, answer: Answer) -> None:
        """Count one answer's speculation report in."""
        self.num_rounds += answer.report["rounds"]
        self.num_drafted += answer.report["drafted_nodes"]
        self.num_accepted += answer.report["accepted_tokens"]

    @property
    def acceptance_length(self) -> float:
        return 1.0 + self.num_accepted / max(self.num_rounds, 1)

    @property
    def nodes_per_round(self) -> float:
        return self.num_drafted / max(self.num_rounds, 1)

    @property
    def accepted_per_node(self) -> float:
        return self.num_accepted / max(self.num_drafted, 1)


@dataclass(frozen=True)
class Outcome:
    """What one setting reached, by category; the category "all" is their sum."""

    setting: Setting
    tallies: dict[str, Tally] = field(default_factory=lambda: {_ALL: Tally()})

    def add(self, prompt: Prompt, answer: Answer) -> None:
        """Count one answer in."""
        self.tallies[_ALL].add(answer)
        self.tallies.setdefault(prompt.category, Tally()).add(answer)


def run(options: Options) -> Result:
    """Answer all prompts once in every setting, with direct stages and the engine's own loop."""
    deployments = _deployments(options)
    settings = [_settings(options.arguments, sources) for sources in deployments]
    max_tokens = options.arguments.max_tokens or (
        _QUICK_MAX_TOKENS if options.is_quick else _MAX_TOKENS
    )
    outcomes: list[Outcome] = []
    with progress_bar("answers", sum(map(len, settings)) * len(options.prompts)) as advance:
        for deployment, own in zip(deployments.values(), settings, strict=True):
            engine = LocalEngine(deployment)
            outcomes += [
                _measure(engine, options.prompts, setting, max_tokens, advance) for setting in own
            ]
    return Result(_figures(outcomes), _details(outcomes))


def _deployments(options: Options) -> dict[str, Deployment]:
    """The deployment once for every set of sources. Raises InvalidDeployment."""
    own, arguments = options.deployment, options.arguments
    if not arguments.sources:
        return {own.drafter.source: own}
    drafters = {
        name: replace(
            own.drafter,
            source=SOURCE_SETS[name],
            model="" if name == "lookup" else str(arguments.drafter or own.drafter.model),
        )
        for name in arguments.sources
    }
    return {name: replace(own, drafter=drafter) for name, drafter in drafters.items()}


def _settings(arguments: argparse.Namespace, sources: str) -> list[Setting]:
    laws: list[tuple[float, str]] = []
    for temperature in arguments.temperatures:
        modes = arguments.modes if temperature > 0 else ["greedy"]
        laws += [(temperature, mode) for mode in modes]
    return [
        Setting(sources, policy, budget, temperature, mode)
        for (temperature, mode), policy, budget in product(
            laws, arguments.policies, arguments.node_budgets
        )
    ]


def _measure(
    engine: LocalEngine,
    prompts: Sequence[Prompt],
    setting: Setting,
    max_tokens: int,
    advance: Callable[[], None],
) -> Outcome:
    parameters = {
        "temperature": setting.temperature,
        "max_tokens": max_tokens,
        "speculation": setting.policy,
        "node_budget": setting.node_budget,
        "acceptance": setting.mode,
    }
    requests = [
        engine.chat_request(prompt.text, seed=seed, **parameters)
        for seed, prompt in enumerate(prompts)
    ]
    outcome = Outcome(setting)
    for prompt, answer in zip(prompts, engine.run(requests, on_end=advance), strict=True):
        outcome.add(prompt, answer)
    return outcome


def _figures(outcomes: Sequence[Outcome]) -> dict[str, float]:
    """Policies are named at the first node budget, of the first set of sources; topn also by
    sources and budget."""
    figures: dict[str, float] = {}
    first = (outcomes[0].setting.sources, outcomes[0].setting.node_budget)
    for outcome in outcomes:
        setting, total = outcome.setting, outcome.tallies[_ALL]
        if (setting.sources, setting.node_budget) == first:
            name = f"{setting.policy}{setting.suffix}"
            figures[f"tau_{name}"] = total.acceptance_length
            figures[f"nodes_{name}"] = total.nodes_per_round
            figures[f"accepted_per_node_{name}"] = total.accepted_per_node
        if setting.policy == "topn":
            name = f"{setting.sources}{setting.node_budget}_tau{setting.suffix}"
            figures[name] = total.acceptance_length
    return figures


def _details(outcomes: Sequence[Outcome]) -> dict[str, list[Record]]:
    categories = sorted(set(outcomes[0].tallies) - {_ALL})
    return {
        "acceptance by policy": [_record(outcome, _ALL) for outcome in outcomes],
        "acceptance by policy and category": [
            _record(outcome, category) for outcome in outcomes for category in categories
        ],
    }


def _record(outcome: Outcome, category: str) -> Record:
    setting, tally = outcome.setting, outcome.tallies[category]
    return {
        "sources": setting.sources,
        "policy": setting.policy,
        "node_budget": setting.node_budget,
        "mode": setting.mode,
        "temperature": setting.temperature,
        "category": category,
        "rounds": tally.num_rounds,
        "acceptance_length": tally.acceptance_length,
        "nodes_per_round": tally.nodes_per_round,
        "accepted_per_node": tally.accepted_per_node,
    }


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--policies", type=listed(one_of(POLICIES)), default=list(POLICIES))
    parser.add_argument("--node-budgets", type=listed(positive), default=[16], metavar="N,N")
    parser.add_argument(
        "--temperatures", type=listed(float), default=[0.0], metavar="T,T", help="0 = greedy"
    )
    parser.add_argument(
        "--modes",
        type=listed(one_of(_SAMPLING_MODES)),
        default=list(_SAMPLING_MODES),
        help="laws of acceptance above temperature 0",
    )
    parser.add_argument(
        "--sources",
        type=listed(one_of(tuple(SOURCE_SETS))),
        default=[],
        metavar="NAME,NAME",
        help=f"one after the other, of {', '.join(SOURCE_SETS)}; default: the deployment's own",
    )
    parser.add_argument(
        "--drafter", type=Path, metavar="FOLDER", help="block drafter of the sets but lookup"
    )
    parser.add_argument("--max-tokens", type=positive, metavar="N", help="tokens of an answer")


BENCHMARK = Benchmark(
    "acceptance",
    "acceptance length, nodes per round and accepted per node, by policy and category",
    run,
    _add_arguments,
)
