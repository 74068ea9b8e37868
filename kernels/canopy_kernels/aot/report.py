"""Registers, spills and shared memory of every kernel, compiled ahead of time; needs no GPU.

    python -m canopy_kernels.aot.report [--json] [capability ...]

Each case is compiled for the compute capabilities given (all of CAPABILITIES if none is) and the
numbers are read from the cubin by the cuobjdump of the Triton wheel. A stack frame is what
registers spill to.
"""

import argparse
import itertools
import json
import multiprocessing
import re
import subprocess
import tempfile
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass, fields
from pathlib import Path

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from canopy_kernels.aot.cases import CASES

CAPABILITIES = (80, 90, 100, 120)
_FORMAT = "{:28} {:52} {:>10} {:>9} {:>11} {:>12}"


@dataclass(frozen=True)
class CompiledKernel:
    """What one kernel takes on one compute capability."""

    kernel: str
    case: str
    capability: int
    registers: int  # per thread
    spill_bytes: int  # per thread
    shared_bytes: int  # per block


def compile_report(capabilities: Sequence[int] = CAPABILITIES) -> list[CompiledKernel]:
    """One row per case and capability. Raises what the compiler raises."""
    jobs = list(itertools.product(range(len(CASES)), capabilities))
    spawning = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(mp_context=spawning) as pool:
        return list(pool.map(_compile, *zip(*jobs, strict=True)))


def _compile(index: int, capability: int) -> CompiledKernel:
    case = CASES[index]
    source = ASTSource(case.kernel, case.full_signature(), case.constants, case.alignment())
    target = GPUTarget("cuda", capability, 32)
    compiled = triton.compile(source, target=target, options=case.options)
    usage = _resource_usage(compiled.asm["cubin"])
    return CompiledKernel(
        case.kernel.__name__.strip("_"),
        case.name,
        capability,
        usage["REG"],
        usage["STACK"] + usage["LOCAL"],
        compiled.metadata.shared,
    )


def _resource_usage(cubin: bytes) -> dict[str, int]:
    tool = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "cuobjdump"
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        command = [str(tool), "-res-usage", file.name]
        text = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    return {name: int(value) for name, value in re.findall(r"\b([A-Z]+):(\d+)", text)}


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
