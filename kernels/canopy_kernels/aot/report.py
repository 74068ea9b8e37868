"""What every kernel takes of a card, compiled ahead of time; needs no GPU.

    python -m canopy_kernels.aot.report [--json] [capability ...]

Each case is compiled for the compute capabilities given (all of CAPABILITIES if none is). A stack
frame is what registers spill to.
"""

import argparse
import json
import multiprocessing
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass, fields

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from canopy_kernels.aot.cases import cases
from canopy_kernels.aot.inspection import (
    blocks_per_sm,
    copies_in_flight,
    num_repeated_products,
    resource_usage,
)

CAPABILITIES = (80, 90, 100, 120)
_FORMAT = "{:28} {:52}" + " {:>20}" * 9


@dataclass(frozen=True)
class CompiledKernel:
    """What one kernel takes on one compute capability."""

    kernel: str
    case: str
    capability: int
    registers: int  # per thread
    spill_bytes: int  # per thread
    shared_bytes: int  # per block
    blocks_per_sm: int  # that fit at once, by registers and shared memory
    min_blocks_per_sm: int  # that the case is made for
    copies_in_flight: int  # while a tile is computed
    min_copies_in_flight: int
    repeated_products: int  # matrix products that several warps compute in full


def compile_report(capabilities: Sequence[int] = CAPABILITIES) -> list[CompiledKernel]:
    """One row per case and capability. Raises what the compiler raises."""
    jobs = [(c, index) for c in capabilities for index in range(len(cases(c)))]
    spawning = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(mp_context=spawning) as pool:
        return list(pool.map(_compile, *zip(*jobs, strict=True)))


def _compile(capability: int, index: int) -> CompiledKernel:
    case = cases(capability)[index]
    source = ASTSource(case.kernel, case.full_signature(), case.constants, case.alignment())
    target = GPUTarget("cuda", capability, 32)
    compiled = triton.compile(source, target=target, options=case.options)
    usage, ttgir = resource_usage(compiled.asm["cubin"]), compiled.asm["ttgir"]
    shared_bytes, num_warps = compiled.metadata.shared, compiled.metadata.num_warps
    return CompiledKernel(
        case.kernel.__name__.strip("_"),
        case.name,
        capability,
        usage["REG"],
        usage["STACK"] + usage["LOCAL"],
        shared_bytes,
        blocks_per_sm(usage["REG"], num_warps, shared_bytes, capability),
        case.min_blocks_per_sm,
        copies_in_flight(ttgir),
        int(case.overlaps_copies),
        num_repeated_products(ttgir),
    )


def main() -> None:
    """The report as a table, or as JSON."""
    parser = argparse.ArgumentParser(description="Compile every kernel ahead of time.")
    parser.add_argument("capabilities", nargs="*", type=int, default=CAPABILITIES)
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    rows = compile_report(arguments.capabilities)
    if arguments.json:
        print(json.dumps([asdict(row) for row in rows]))
        return
    print(_FORMAT.format(*(field.name for field in fields(CompiledKernel))))
    for row in rows:
        print(_FORMAT.format(*asdict(row).values()))


if __name__ == "__main__":
    main()
