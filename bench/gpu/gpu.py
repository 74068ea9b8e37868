"""Step times T(B, R) of a random target on a GPU, beside the bound of its memory, and rates.

B tokens are verified in R sequences, on 256 tokens of context each. The bound reads all weights
once and every sequence's keys and values.
"""

import argparse
from collections.abc import Callable, Sequence
from statistics import median

import torch

from bench.gpu.kernels import COPY_BYTES, copy_bandwidth, cuda_milliseconds, require_cuda
from bench.gpu.models import MODELS, kv_bytes_per_token, num_weights, random_decoder
from bench.gpu.rates import Load, serve
from bench.harness.arguments import positive
from bench.harness.benchmark import Benchmark, Options, Record, Result
from bench.steps.cases import CONTEXT_LENGTH, Case, StepTimer
from canopy.config import TargetConfig
from canopy.models.config import ModelConfig
from canopy.models.decoder import Decoder
from canopy.progress import progress_bar
from canopy.verifier.construction import with_graphs

_ROWS = (1, 2, 4, 8, 16, 32, 64)
_SEQUENCES = (1, 4, 16, 64)
CASES = [Case(sequences, rows) for sequences in _SEQUENCES for rows in _ROWS]
LOADS = [Load(sequences, prompt_length=256, num_tokens=128) for sequences in (1, 16)]


def run(options: Options) -> Result:
    """Raises Skipped without a GPU."""
    require_cuda()
    arguments = options.arguments
    config, dtype = MODELS[arguments.model], arguments.dtype
    decoder: Decoder = random_decoder(config, dtype, "cuda")
    if arguments.graph_rows:
        decoder = with_graphs(decoder, arguments.graph_rows, max(_SEQUENCES))
    bound = copy_bandwidth("cuda", COPY_BYTES, cuda_milliseconds)
    repeats = arguments.repeats or (3 if options.is_quick else 15)
    with progress_bar("steps", repeats * len(CASES)) as advance:
        times = step_times(decoder, CASES, "cuda", repeats, advance)
    steps = step_records(times, config, getattr(torch, dtype), bound)
    rates = [record for load in LOADS for record in rate_records(decoder, load)]
    found = figures(steps, rates) | {"copy_gb_per_s": bound}
    return Result(found, {"step times": steps, "verifier end to end": rates})


def step_times(
    decoder: Decoder,
    cases: Sequence[Case],
    device: str,
    repeats: int,
    advance: Callable[[], None],
) -> dict[Case, list[float]]:
    """Milliseconds by repeat; cases take turns, after one round that warms up."""
    timer = StepTimer(decoder, device, cases)
    for case in cases:
        timer.seconds(case)
    times: dict[Case, list[float]] = {case: [] for case in cases}
    for _ in range(repeats):
        for case in cases:
            times[case].append(1e3 * timer.seconds(case))
            advance()
    return times


def step_records(
    times: dict[Case, list[float]], config: ModelConfig, dtype: torch.dtype, bound: float
) -> list[Record]:
    """Medians beside the bound in GB/s."""
    records: list[Record] = []
    for case, milliseconds in times.items():
        ms, bound_ms = median(milliseconds), step_bytes(case, config, dtype) / bound / 1e6
        records.append(
            {
                "tokens": case.num_sequences * case.num_rows,
                "sequences": case.num_sequences,
                "ms": ms,
                "bound_ms": bound_ms,
                "of_bound": bound_ms / ms,
            }
        )
    return records


def step_bytes(case: Case, config: ModelConfig, dtype: torch.dtype) -> int:
    """Weights once, and every sequence's context and rows."""
    kept = case.num_sequences * (CONTEXT_LENGTH + case.num_rows)
    return num_weights(config) * dtype.itemsize + kept * kv_bytes_per_token(config, dtype)


def rate_records(decoder: Decoder, load: Load) -> list[Record]:
    """Plain decoding, then the same text with trees."""
    serve(decoder, load)  # warms up
    plain = serve(decoder, load)
    trees = serve(decoder, load, plain.texts)
    return [
        {
            "decoding": name,
            "sequences": load.num_sequences,
            "nodes": num_nodes,
            "acceptance_length": served.acceptance_length,
            "tokens_per_s": served.tokens_per_second,
            "over_plain": served.tokens_per_second / plain.tokens_per_second,
        }
        for name, num_nodes, served in (("plain", 0, plain), ("trees", load.num_nodes, trees))
    ]


def figures(steps: Sequence[Record], rates: Sequence[Record]) -> dict[str, float]:
    """One token's step, and the rates."""
    one = next(record for record in steps if record["tokens"] == 1)
    return {"step1_ms": one["ms"], "step1_of_bound": one["of_bound"]} | {
        f"{r['decoding']}_tokens_per_s_{r['sequences']}": r["tokens_per_s"] for r in rates
    }


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--model", choices=list(MODELS), default="1b", help="its shape")
    parser.add_argument("--dtype", choices=("bfloat16", "float32"), default="bfloat16")
    parser.add_argument(
        "--graph-rows",
        type=int,
        default=TargetConfig.max_graph_rows,
        metavar="N",
        help="target.max_graph_rows; 0 launches every kernel by itself",
    )
    parser.add_argument("--repeats", type=positive, metavar="N")


BENCHMARK = Benchmark(
    "gpu", "step times of a random 1B to 8B target on a GPU, and its rates", run, _add_arguments
)
