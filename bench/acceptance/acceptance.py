"""How much of what is drafted the target accepts, by policy and by category of prompt.

    acceptance length  tau = 1 + accepted / rounds     (the bonus token counts)
    nodes per round          drafted / rounds          (the anchor does not)
    accepted per node        accepted / drafted

over all rounds of all answers, the undrafted first round of each answer included. With `--replay`
the target writes each text once and the rounds are walked over it, see bench.acceptance.replay.
"""

import argparse
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import product
from pathlib import Path

from bench.acceptance.draft_share import draft_share
from bench.acceptance.replay import NOT_REPLAYED_POLICIES, REPLAYED_MODES, TextWriter
from bench.acceptance.report import Outcome, Setting, details_of, figures_of, plot_acceptance
from bench.harness.arguments import listed, one_of, positive
from bench.harness.benchmark import Benchmark, Options, Result
from bench.harness.local_engine import LocalEngine
from bench.harness.prompts import Prompt
from canopy.config import ACCEPTANCE_MODES, POLICIES, Deployment, TreeConfig
from canopy.engine.request import GenerationRequest
from canopy.progress import progress_bar

_MAX_TOKENS = 96
_QUICK_MAX_TOKENS = 32
_SAMPLING_MODES = tuple(mode for mode in ACCEPTANCE_MODES if mode != "greedy")
# Names of sets of proposal sources, and the source of a deployment that stands for each.
SOURCE_SETS = {
    "lookup": "lookup",
    "neural": "markov",
    "marginal": "block",
    "all": "all",
    "autoregressive": "autoregressive",
}


def run(options: Options) -> Result:
    """Answer all prompts once in every setting, with direct stages and the engine's own loop."""
    arguments = options.arguments
    deployments = _deployments(options)
    settings = [_settings(arguments, sources) for sources in deployments]
    measure = _Measurement(options, list(deployments.values()))
    outcomes: list[Outcome] = []
    total = sum(len(measure.prompts_of(setting)) for own in settings for setting in own)
    with progress_bar("answers", total) as advance:
        for deployment, own in zip(deployments.values(), settings, strict=True):
            measure.use(deployment)
            outcomes += [measure.outcome(setting, advance) for setting in own]
    figures = figures_of(outcomes)
    if arguments.draft_share:
        for sources, deployment in deployments.items():
            figures |= draft_share(deployment, options.prompts, "" if sources == "all" else sources)
    if arguments.plots:
        plot_acceptance(outcomes, arguments.plots)
    return Result(figures, details_of(outcomes))


def _deployments(options: Options) -> dict[str, Deployment]:
    """The deployment once for every set of sources. Raises InvalidDeployment."""
    own, arguments = options.deployment, options.arguments
    if not arguments.sources:
        return {own.drafter.source: own}
    models = {
        "lookup": "",
        "autoregressive": str(arguments.small_drafter or own.drafter.model or "default"),
    }
    block = str(arguments.drafter or own.drafter.model or "default")
    drafters = {
        name: replace(own.drafter, source=SOURCE_SETS[name], model=models.get(name, block))
        for name in arguments.sources
    }
    return {name: replace(own, drafter=drafter) for name, drafter in drafters.items()}


def _settings(arguments: argparse.Namespace, sources: str) -> list[Setting]:
    sampled: list[tuple[float, str]] = []
    for temperature in arguments.temperatures:
        modes = arguments.modes if temperature > 0 else ["greedy"]
        sampled += [(temperature, mode) for mode in modes]
    return [
        Setting(sources, policy, budget, temperature, mode)
        for (temperature, mode), policy in product(sampled, arguments.policies)
        for budget in _budgets(policy, arguments.node_budgets)
    ]


def _budgets(policy: str, budgets: Sequence[int]) -> Sequence[int]:
    """A chain is measured at one length: no shorter one is accepted further, and none is deeper
    than a tree may be."""
    if policy != "chain":
        return budgets
    possible = [budget for budget in budgets if budget <= TreeConfig.max_depth]
    return [max(possible)] if possible else [min(budgets)]


class _Measurement:
    """Settings, one after the other; engines and texts are kept as long as they serve."""

    def __init__(self, options: Options, deployments: Sequence[Deployment]) -> None:
        arguments = options.arguments
        self._prompts = options.prompts
        self._max_tokens = arguments.max_tokens or (
            _QUICK_MAX_TOKENS if options.is_quick else _MAX_TOKENS
        )
        self._num_real = arguments.real_limit or len(options.prompts)
        self._writer = TextWriter(deployments, arguments.texts) if arguments.replay else None

    def use(self, deployment: Deployment) -> None:
        """Measure this one from now on."""
        self._deployment = deployment
        self._engines: dict[bool, LocalEngine] = {}

    def prompts_of(self, setting: Setting) -> Sequence[Prompt]:
        """All of them, or where replays serve for the others, the first few."""
        if self._writer is None or _is_replayed(setting):
            return self._prompts
        return self._prompts[: self._num_real]

    def outcome(self, setting: Setting, advance: Callable[[], None]) -> Outcome:
        """Answer the prompts of a setting."""
        prompts, engine = self.prompts_of(setting), self._engine(setting)
        requests = [
            self._request(engine, setting, prompt, seed) for seed, prompt in enumerate(prompts)
        ]
        if self._writer is not None and _is_replayed(setting):
            self._writer.write(requests)
        before = list(engine.metrics.accepted_by_depth)
        outcome = Outcome(setting)
        for prompt, answer in zip(prompts, engine.run(requests, on_end=advance), strict=True):
            outcome.add(prompt, answer)
        after = engine.metrics.accepted_by_depth
        outcome.accepted_by_depth = [b - a for a, b in zip(before, after, strict=True)]
        return outcome

    def _engine(self, setting: Setting) -> LocalEngine:
        is_replayed = self._writer is not None and _is_replayed(setting)
        if is_replayed not in self._engines:
            verifier = self._writer.replay() if self._writer and is_replayed else None
            self._engines[is_replayed] = LocalEngine(self._deployment, verifier)
        return self._engines[is_replayed]

    def _request(
        self, engine: LocalEngine, setting: Setting, prompt: Prompt, seed: int
    ) -> GenerationRequest:
        return engine.chat_request(
            prompt.text,
            seed=seed,
            temperature=setting.temperature,
            max_tokens=self._max_tokens,
            speculation=setting.policy,
            node_budget=setting.node_budget,
            acceptance=setting.mode,
        )


def _is_replayed(setting: Setting) -> bool:
    return setting.mode in REPLAYED_MODES and setting.policy not in NOT_REPLAYED_POLICIES


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
        help="acceptance modes above temperature 0",
    )
    parser.add_argument(
        "--sources",
        type=listed(one_of(tuple(SOURCE_SETS))),
        default=[],
        metavar="NAME,NAME",
        help=f"one after the other, of {', '.join(SOURCE_SETS)}; default: the deployment's own",
    )
    parser.add_argument(
        "--drafter", type=Path, metavar="FOLDER", help="block drafter; default: Canopy's own"
    )
    parser.add_argument(
        "--small-drafter", type=Path, metavar="FOLDER", help="drafter of the set autoregressive"
    )
    parser.add_argument("--max-tokens", type=positive, metavar="N", help="tokens of an answer")
    parser.add_argument(
        "--replay", action="store_true", help="write each text once, walk the rounds over it"
    )
    parser.add_argument(
        "--texts",
        type=Path,
        metavar="FILE",
        help="keep what was written there, for the next replay",
    )
    parser.add_argument(
        "--real-limit", type=positive, metavar="N", help="prompts of what no replay can serve"
    )
    parser.add_argument(
        "--draft-share",
        action="store_true",
        help="time the draft stage against a 16-node verify step, for every set of sources",
    )
    parser.add_argument("--plots", type=Path, metavar="FOLDER", help="draw the greedy trees there")


BENCHMARK = Benchmark(
    "acceptance",
    "acceptance length, nodes per round and accepted per node, by policy and category",
    run,
    _add_arguments,
)
