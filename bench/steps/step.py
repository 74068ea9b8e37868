"""Time of the target's forward pass, by rows and sequences, beside llama.cpp's token time.

A step of k rows verifies a tree of k nodes, the anchor among them, on 256 tokens of context; plain
decoding of n sequences is n trees of one node; a prompt is those 256 tokens in one step. Steps,
types of weights and llama.cpp take turns; a ratio is the median of the ratios within one repeat,
whose own times are the medians of its goes.
"""

import argparse
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import replace
from statistics import median

from bench.harness.arguments import listed, one_of, positive
from bench.harness.benchmark import Benchmark, Options, Record, Result
from bench.peers.arm import Arm, CannotRun, ChatPrompt, not_measured
from bench.peers.llamacpp import PLAIN, llamacpp_arms
from bench.peers.process_group import MachineLoad
from bench.peers.samples import arm_order, quartiles
from bench.peers.synthetic import add_synthetic_argument, target_models
from bench.steps.cases import CONTEXT_LENGTH, Case, StepTimer
from bench.steps.phases import measure_phases
from canopy.config import TargetConfig
from canopy.dtypes import DTYPES, QUANTIZED
from canopy.errors import CanopyError
from canopy.model_store.folders import with_model_folders
from canopy.progress import phase_bars, progress_bar

_SIZES = (1, 2, 4, 8, 16, 32)
CASES = [*(Case(1, rows) for rows in _SIZES), *(Case(n, 1) for n in _SIZES[1:])]
ONE = CASES[0]
_CPU_DTYPES = ("int4", "int8", "float32")
_REPEATS, _QUICK_REPEATS = 15, 3
_GOES = 3  # of a step within a repeat
_PEER_TOKENS = 32

Key = tuple[str, Case]  # a decoder and a step
Goes = dict[Key, Callable[[], float]]  # returns seconds; raises CannotRun
Times = dict[Key, list[float]]  # seconds by repeat


def run(options: Options) -> Result:
    """Raises InvalidDeployment when the deployment's own target cannot be loaded."""
    arguments = options.arguments
    deployment, peer_model = target_models(options)
    with phase_bars() as progress:
        target = with_model_folders(deployment, progress).target
    repeats = arguments.repeats or (_QUICK_REPEATS if options.is_quick else _REPEATS)
    if arguments.phases:
        dtype = target.dtype if target.dtype in QUANTIZED else "int8"
        records = measure_phases(replace(target, dtype=dtype), repeats)
        return Result({}, {f"phases of an {dtype} step, summed over layers": records})
    reasons: dict[str, str] = {}
    timers = _timers(target, arguments.dtypes, reasons)
    with ExitStack() as stack:
        arms: list[Arm] = []
        try:
            peer = llamacpp_arms(PLAIN, peer_model, slots=1, slot_tokens=2 * CONTEXT_LENGTH)
            arms = stack.enter_context(peer)
        except CannotRun as error:
            reasons[PLAIN] = str(error)
        goes = _goes(timers, arms)
        load = MachineLoad([arm.process_group for arm in arms])
        with progress_bar("steps", (repeats + 1) * len(goes)) as advance:
            times = measure(goes, repeats, reasons, advance)
        prompts = [timers[target.dtype].prompt_seconds() for _ in range(repeats)]
        cores_elsewhere = load.cores_elsewhere()
    prompt_ms = 1e3 * median(prompts) / CONTEXT_LENGTH
    return Result(
        {
            **figures(times, target.dtype),
            **peer_figures(times),
            "prompt_ms_per_token": prompt_ms,
            "cores_elsewhere": cores_elsewhere,
        },
        {"forward of one step": step_records(times), "not measured": not_measured(reasons)},
    )


def _timers(
    target: TargetConfig, dtypes: Sequence[str], reasons: dict[str, str]
) -> dict[str, StepTimer]:
    """The deployment's own type first; others as far as they load."""
    timers = {target.dtype: StepTimer.of_target(target, CASES)}
    for dtype in dtypes:
        if dtype not in timers:
            try:
                timers[dtype] = StepTimer.of_target(replace(target, dtype=dtype), CASES)
            except CanopyError as error:
                reasons[dtype] = str(error)
    return timers


def _goes(timers: dict[str, StepTimer], arms: Sequence[Arm]) -> Goes:
    """llama.cpp's token stands beside our step of one row."""

    def step(timer: StepTimer, case: Case) -> Callable[[], float]:
        return lambda: median(timer.seconds(case) for _ in range(_GOES))

    def token(arm: Arm) -> Callable[[], float]:
        return lambda: _token_seconds(arm)

    goes = {(name, case): step(timer, case) for case in CASES for name, timer in timers.items()}
    return goes | {(arm.name, ONE): token(arm) for arm in arms}


def measure(
    goes: Goes, repeats: int, reasons: dict[str, str], advance: Callable[[], None]
) -> Times:
    """Everything once a repeat, in changing order; the first repeat warms up and is dropped.

    What fails leaves its reason and no times.
    """
    times: Times = {key: [] for key in goes}
    for repeat in range(repeats + 1):
        for key in arm_order(list(goes), repeat):
            if key[0] not in reasons:
                try:
                    times[key].append(goes[key]())
                except CannotRun as error:
                    reasons[key[0]] = str(error)
            advance()
    return {key: seconds[1:] for key, seconds in times.items() if key[0] not in reasons}


def _token_seconds(arm: Arm) -> float:
    """Mean of the tokens around the context length at which steps are timed."""
    num_before = CONTEXT_LENGTH - _PEER_TOKENS // 2
    prompt = ChatPrompt("", tuple(range(100, 100 + num_before)))
    (answer,) = arm.answer([prompt], _PEER_TOKENS)
    return (answer.total_s - answer.first_token_s) / (answer.num_tokens - 1)


def figures(times: Times, dtype: str) -> dict[str, float]:
    """Of the deployment's own type of weights."""
    step16, plain32 = Case(1, 16), Case(32, 1)
    found = {
        "step1_ms": 1e3 * median(times[dtype, ONE]),
        "step16_over_step1": _paired(times, (dtype, step16), (dtype, ONE)),
        "step32_sequences_over_step1": _paired(times, (dtype, plain32), (dtype, ONE)),
    }
    if (PLAIN, ONE) in times:
        found["step1_over_llamacpp"] = _paired(times, (dtype, ONE), (PLAIN, ONE))
    return found


def peer_figures(times: Times) -> dict[str, float]:
    """Of every type of weights: a step of one row over a token of llama.cpp."""
    if (PLAIN, ONE) not in times:
        return {}
    return {
        f"{name}_1_over_{PLAIN}": _paired(times, (name, case), (PLAIN, ONE))
        for name, case in times
        if case == ONE and name != PLAIN
    }


def step_records(times: Times) -> list[Record]:
    """One for each type and step; llama.cpp's token stands among them."""
    return [
        {
            "decoder": name,
            "sequences": case.num_sequences,
            "rows_of_each": case.num_rows,
            "median_ms": 1e3 * median(seconds),
            "q1_ms": 1e3 * quartiles(seconds)[0],
            "q3_ms": 1e3 * quartiles(seconds)[2],
            "over_one_row": _paired(times, (name, case), (name, ONE)),
        }
        for (name, case), seconds in times.items()
    ]


def _paired(times: Times, key: tuple[str, Case], other: tuple[str, Case]) -> float:
    return median(a / b for a, b in zip(times[key], times[other], strict=True))


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--dtypes",
        type=listed(one_of(DTYPES)),
        default=list(_CPU_DTYPES),
        metavar="DTYPE,DTYPE",
        help="beside the deployment's own",
    )
    parser.add_argument("--repeats", type=positive, metavar="N")
    add_synthetic_argument(parser)
    parser.add_argument(
        "--phases",
        action="store_true",
        help="where the time of a quantized decoder's step goes",
    )


BENCHMARK = Benchmark(
    "step",
    "time of the target's forward pass by rows and sequences, beside llama.cpp",
    run,
    _add_arguments,
)
