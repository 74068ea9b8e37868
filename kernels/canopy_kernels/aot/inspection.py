"""What a compiled kernel asks of a card, read from its intermediate code and its machine code."""

import re
import subprocess
import tempfile
from pathlib import Path

import triton

REGISTERS = 65536  # of a multiprocessor, on every capability from 8.0 to 12.0
# Shared memory of a multiprocessor, and what each block takes of it beside its own: CUDA
# programming guide, technical specifications by compute capability.
SHARED_BYTES = {80: 164 << 10, 90: 228 << 10, 100: 228 << 10, 120: 100 << 10}
RESERVED_BYTES = 1 << 10
_LAYOUT = re.compile(
    r"(#\w+) = #ttg\.nvidia_mma<\{.*?warpsPerCTA = \[(\d+), (\d+)\].*?instrShape = \[(\d+), (\d+)"
)
_DOT = re.compile(r"(?:tt\.dot|ttng\.warp_group_dot) .*-> tensor<(\d+)x(\d+)x\w+, (#\w+)>")
_WAIT = re.compile(r"async_wait.*num = (\d+)")


def resource_usage(cubin: bytes) -> dict[str, int]:
    """REG, STACK and LOCAL of the machine code, as the Triton wheel's cuobjdump names them."""
    tool = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "cuobjdump"
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        command = [str(tool), "-res-usage", file.name]
        text = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    return {name: int(value) for name, value in re.findall(r"\b([A-Z]+):(\d+)", text)}


def blocks_per_sm(registers: int, num_warps: int, shared_bytes: int, capability: int) -> int:
    """How many blocks of so many registers a thread fit a multiprocessor."""
    granule = 8  # registers of a thread are given out in eights
    by_registers = REGISTERS // (-(-registers // granule) * granule * 32 * num_warps)
    return min(by_registers, SHARED_BYTES[capability] // (shared_bytes + RESERVED_BYTES))


def copies_in_flight(ttgir: str) -> int:
    """Asynchronous copies that a loop leaves under way while it computes; 0 where it waits for all.

    Loops that copy nothing ahead have no say.
    """
    return max((int(num) for num in _WAIT.findall(ttgir)), default=0)


def num_repeated_products(ttgir: str) -> int:
    """Matrix products that several warps compute in full, each for itself."""
    layouts = {name: tuple(map(int, numbers)) for name, *numbers in _LAYOUT.findall(ttgir)}
    num_repeated = 0
    for rows, columns, name in _DOT.findall(ttgir):
        if name in layouts:
            warp_rows, warp_columns, height, width = layouts[name]
            num_repeated += warp_rows * height > int(rows) or warp_columns * width > int(columns)
    return num_repeated
