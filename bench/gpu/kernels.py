"""The ops on a GPU against their alternatives on the same inputs, beside the bandwidth bound.

Bytes are those that no implementation can do without; the bound is what a copy reaches here. A
rival that cannot run a case is listed with its reason.
"""

import argparse
from collections.abc import Callable, Sequence
from dataclasses import asdict
from functools import partial
from typing import Any

import torch

from bench.gpu.kernel_cases import (
    ATTENTION_CASES,
    LINEAR_CASES,
    MOVE_CASES,
    SAMPLING_CASES,
    AttentionInputs,
)
from bench.gpu.kernel_rivals import (
    INVARIANT,
    OURS,
    Call,
    attention_calls,
    linear_calls,
    move_calls,
    sampling_calls,
)
from bench.harness.arguments import listed, one_of
from bench.harness.benchmark import Benchmark, Options, Record, Result, Skipped
from canopy.progress import progress_bar

OPS = ("attention", "commit", "sampling", "linear")
COPY_BYTES = 1 << 30

Timer = Callable[[Call], float]  # milliseconds of one call
Case = tuple[Record, int, Callable[[], dict[str, Call]]]  # shape, bytes, calls


def require_cuda() -> None:
    """Raises Skipped without a GPU."""
    if not torch.cuda.is_available():
        raise Skipped("this machine has no CUDA device that torch can use")


def run(options: Options) -> Result:
    """Raises Skipped without a GPU."""
    require_cuda()
    arguments = options.arguments
    dtype = getattr(torch, arguments.dtype)
    cases = {op: cases_of(op, dtype, "cuda", options.is_quick) for op in arguments.ops}
    bound = copy_bandwidth("cuda", COPY_BYTES, cuda_milliseconds)
    tables: dict[str, list[Record]] = {op: [] for op in cases}
    failed: list[Record] = []
    with progress_bar("cases", sum(map(len, cases.values()))) as advance:
        for op, of_op in cases.items():
            for case in of_op:
                tables[op] += measure(case, cuda_milliseconds, bound, failed)
                advance()
    return Result(figures(tables, bound), {**tables, "not measured": failed})


def cases_of(op: str, dtype: torch.dtype, device: str, is_quick: bool) -> list[Case]:
    """All of an op, or the first and the last."""
    kinds: dict[str, tuple[Sequence[Any], Callable[[Any], dict[str, Call]]]] = {
        "attention": (
            ATTENTION_CASES,
            lambda case: attention_calls(AttentionInputs.of(case, dtype, device)),
        ),
        "commit": (MOVE_CASES, lambda case: move_calls(case, dtype, device)),
        "sampling": (SAMPLING_CASES, lambda case: sampling_calls(case, dtype, device)),
        "linear": (LINEAR_CASES, lambda case: linear_calls(case, dtype, device)),
    }
    shapes, calls_of = kinds[op]
    chosen = [shapes[0], shapes[-1]] if is_quick else shapes
    return [(asdict(case), case.num_bytes(dtype), partial(calls_of, case)) for case in chosen]


def measure(case: Case, milliseconds: Timer, bound: float, failed: list[Record]) -> list[Record]:
    """One record for each way of doing it."""
    shape, num_bytes, calls = case
    records = []
    for name, call in calls().items():
        try:
            ms = milliseconds(call)
        except RuntimeError as error:  # no room, or no such kernel here
            failed.append({"op": name, "shape": str(shape), "reason": str(error).split("\n")[0]})
            continue
        gb_per_s = num_bytes / ms / 1e6
        records.append(
            {"by": name, **shape, "ms": ms, "gb_per_s": gb_per_s, "of_bound": gb_per_s / bound}
        )
    return records


def figures(tables: dict[str, list[Record]], bound: float) -> dict[str, float]:
    """The bound, and per op our least share of it and our least lead over the best rival."""
    found = {"copy_gb_per_s": bound}
    for op, records in tables.items():
        ours = [record for record in records if record["by"] == OURS]
        leads = [min(rivals) / own["ms"] for own in ours if (rivals := _rivals_ms(own, records))]
        if ours:
            found[f"{op}_least_of_bound"] = min(record["of_bound"] for record in ours)
        if leads:
            found[f"{op}_least_lead"] = min(leads)
    return found


def _rivals_ms(own: Record, records: Sequence[Record]) -> list[float]:
    """Of the same shape."""
    shape = own.keys() - {"by", "ms", "gb_per_s", "of_bound"}
    return [
        record["ms"]
        for record in records
        if record["by"] not in (OURS, INVARIANT) and all(record[key] == own[key] for key in shape)
    ]


def copy_bandwidth(device: str, num_bytes: int, milliseconds: Timer) -> float:
    """GB/s read and written together by a large copy."""
    source = torch.empty(num_bytes, dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    return 2 * num_bytes / milliseconds(lambda: target.copy_(source)) / 1e6


def cuda_milliseconds(call: Call) -> float:
    """The median, caches cold."""
    from triton.testing import do_bench

    return float(do_bench(call, warmup=50, rep=200, return_mode="median"))


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--ops", type=listed(one_of(OPS)), default=list(OPS), metavar="OP,OP")
    parser.add_argument("--dtype", choices=("bfloat16", "float16", "float32"), default="bfloat16")


BENCHMARK = Benchmark(
    "kernels", "the GPU kernels against their alternatives, beside the bound", run, _add_arguments
)
