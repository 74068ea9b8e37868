"""The instruction sets for which the int8 kernels have code of their own, and how to choose one.

Numba compiles for the CPU that its environment names, so a choice holds for a whole process.
"""

from numba.core.codegen import get_host_cpu_features

from canopy_kernels.cpu.amx_ir import are_tiles_permitted, has_matrix_tiles
from canopy_kernels.cpu.simd_ir import has_feature, has_wide_registers

# Of each, best first: the feature that it takes, and how the names of later features begin.
_NEEDED = {"amx": "amx-int8", "avx512": "avx512bw", "avx2": "avx2", "sse2": "sse2"}
_LATER = {"amx": (), "avx512": ("amx",), "avx2": ("amx", "avx5", "avx1"), "sse2": ("",)}
INSTRUCTION_SETS = tuple(_NEEDED)


def instruction_set_in_use() -> str:
    """What the kernels of this process are compiled for."""
    if has_matrix_tiles():
        return "amx"
    if has_wide_registers():
        return "avx512"
    return "avx2" if has_feature("avx2") else "sse2"


def is_supported(name: str) -> bool:
    """Whether this CPU, under this operating system, can run it."""
    permitted = name != "amx" or are_tiles_permitted()
    return permitted and f"+{_NEEDED[name]}" in get_host_cpu_features().split(",")


def environment_for(name: str) -> dict[str, str]:
    """What makes a process compile its kernels for this CPU without anything later."""
    present = [f for f in get_host_cpu_features().split(",") if f.startswith("+")]
    kept = [f for f in present if not f[1:].startswith(_LATER[name])]
    return {"NUMBA_CPU_NAME": "generic", "NUMBA_CPU_FEATURES": ",".join(kept)}
