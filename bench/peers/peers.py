"""Our server beside other programs on the same machine, model, prompts and lengths.

Every answer is greedy and has exactly `--max-tokens` tokens: the end of sequence is ruled out for
all. Each batch of prompts goes to one arm after the other, in changing order, so that a drift of
the machine meets all of them; an arm has all cores while the others are idle. Every arm answers
one batch before the clock runs. `cores_elsewhere` should be close to 0: threads that spin while
they wait, as those of the peers do, suffer from a busy machine more than ours.
"""

import argparse
from collections.abc import Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import asdict, replace
from pathlib import Path

from bench.harness.arguments import listed, one_of, positive
from bench.harness.benchmark import Benchmark, Options, Record, Result
from bench.harness.prompts import Prompt
from bench.peers import hf_transformers as transformers
from bench.peers import llamacpp
from bench.peers.arm import Arm, CannotRun, ChatPrompt, not_measured
from bench.peers.canopy_server import PLAIN, SPECULATING, canopy_arms
from bench.peers.llamacpp import SPECULATIONS
from bench.peers.measurement import InterleavedRun, Plan
from bench.peers.process_group import MachineLoad, group_memory
from bench.peers.samples import Samples, ratio_records, speed_records
from bench.peers.synthetic import add_synthetic_argument, target_models
from canopy.config import Deployment
from canopy.model_store.folders import with_model_folders
from canopy.progress import phase_bars, progress_bar
from canopy.text.tokenizer import Tokenizer

_ARMS = (SPECULATING, PLAIN, *SPECULATIONS, transformers.PLAIN, transformers.LOOKUP)
_REPEATS = 3
_MAX_TOKENS = 128
_QUICK_MAX_TOKENS = 32
_SPARE_TOKENS = 64  # a place of llama.cpp also holds what it drafts


def run(options: Options) -> Result:
    """Start every arm that was asked for and can run, measure, stop them. Raises CannotStart."""
    plan = _plan(options)
    named, llamacpp_model = target_models(options)
    with phase_bars() as progress:
        deployment = with_model_folders(named, progress)
    prompts = chat_prompts(Path(deployment.target.model), options.prompts)
    reasons = dict(llamacpp.LEFT_OUT)
    with ExitStack() as stack:
        arms: list[Arm] = []
        for names, peer in _peers(llamacpp_model, deployment, plan, prompts):
            if wanted := [name for name in names if name in options.arguments.arms]:
                try:
                    arms += [a for a in stack.enter_context(peer) if a.name in wanted]
                except CannotRun as error:
                    reasons |= dict.fromkeys(wanted, str(error))
        race = InterleavedRun(arms, plan)
        load = MachineLoad([arm.process_group for arm in arms])
        with progress_bar("batches", plan.num_steps(len(prompts), len(arms))) as advance:
            samples = race.run(prompts, advance)
        cores_elsewhere = load.cores_elsewhere()
        memory = _memory_records(arms)
    return Result(
        {**figures(samples), "cores_elsewhere": cores_elsewhere},
        {
            "speed": speed_records(samples),
            f"{SPECULATING} over the others: ratio of tokens/s": ratio_records(
                samples, SPECULATING
            ),
            "memory after the run, clients not counted": memory,
            "not measured": not_measured(reasons | race.reasons),
        },
    )


def chat_prompts(folder: Path, prompts: Sequence[Prompt]) -> list[ChatPrompt]:
    """Rendered by the template of the model in `folder`."""
    tokenizer = Tokenizer(folder)

    def rendered(text: str) -> ChatPrompt:
        chat = tokenizer.render_chat([{"role": "user", "content": text}])
        return ChatPrompt(text, tuple(tokenizer.encode_rendered(chat)))

    return [rendered(prompt.text) for prompt in prompts]


def figures(samples: Samples) -> dict[str, float]:
    """Ratios and speeds of what was measured; `best` is the fastest of a program's arms."""
    found: dict[str, float | None] = {}
    for count in samples.concurrencies:
        speeds = {arm: samples.speed(arm, count) for arm in samples.arms}
        fastest = max(SPECULATIONS, key=lambda arm: speeds.get(arm) or 0.0)
        pairs = {
            "ours_over_llamacpp": (SPECULATING, llamacpp.PLAIN),
            "ours_over_best_llamacpp": (SPECULATING, fastest),
            "priced_over_ar": (SPECULATING, PLAIN),
            "ours_over_transformers": (SPECULATING, transformers.PLAIN),
            "ar_over_llamacpp": (PLAIN, llamacpp.PLAIN),
        }
        found |= {f"{n}_{count}": samples.ratio(*pair, count) for n, pair in pairs.items()}
        found |= {f"{arm}_tokens_per_s_{count}": speed for arm, speed in speeds.items()}
    return {name: value for name, value in found.items() if value is not None}


def _plan(options: Options) -> Plan:
    arguments = options.arguments
    return Plan(
        arguments.concurrency,
        arguments.repeats or (1 if options.is_quick else _REPEATS),
        arguments.max_tokens or (_QUICK_MAX_TOKENS if options.is_quick else _MAX_TOKENS),
    )


def _peers(
    llamacpp_model: str, deployment: Deployment, plan: Plan, prompts: Sequence[ChatPrompt]
) -> list[tuple[tuple[str, ...], AbstractContextManager[list[Arm]]]]:
    """Names of arms, and what starts them. deployment: with the folders of its models."""
    slots = max(plan.concurrencies)
    limits = replace(deployment.limits, max_running=max(slots, deployment.limits.max_running))
    longest = max(len(prompt.token_ids) for prompt in prompts)
    slot_tokens = longest + plan.num_tokens + _SPARE_TOKENS
    return [
        ((SPECULATING, PLAIN), canopy_arms(replace(deployment, limits=limits))),
        *(
            ((name,), llamacpp.llamacpp_arms(name, llamacpp_model, slots, slot_tokens))
            for name in SPECULATIONS
        ),
        (
            (transformers.PLAIN, transformers.LOOKUP),
            transformers.transformers_arms(Path(deployment.target.model)),
        ),
    ]


def _memory_records(arms: Sequence[Arm]) -> list[Record]:
    """Arms of one process have the same."""
    return [{"arm": arm.name, **asdict(group_memory(arm.process_group))} for arm in arms]


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--arms", type=listed(one_of(_ARMS)), default=list(_ARMS), help=f"of {', '.join(_ARMS)}"
    )
    parser.add_argument(
        "--concurrency", type=listed(positive), default=[1, 8], metavar="N,N", help="sent at once"
    )
    parser.add_argument("--repeats", type=positive, metavar="N", help="of every batch")
    parser.add_argument("--max-tokens", type=positive, metavar="N", help="tokens of an answer")
    add_synthetic_argument(parser)


BENCHMARK = Benchmark(
    "peers",
    "our server beside llama.cpp and transformers: tokens/s, time to first token, memory",
    run,
    _add_arguments,
    reads_profile=True,
)
