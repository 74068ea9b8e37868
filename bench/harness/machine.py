"""The machine that a result was measured on, without anything that names its owner or folders."""

import platform
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch

from canopy.cpus import usable_cpus

_PACKAGES = ("canopy-serving", "torch", "triton", "numpy", "numba", "nvidia-pytriton")


def describe_machine() -> dict[str, Any]:
    """CPU and GPU model, usable cores, memory and versions."""
    return {
        "cpu": _first_value("/proc/cpuinfo", "model name") or platform.machine(),
        "cores": usable_cpus(),
        "gpu": torch.cuda.get_device_name() if torch.cuda.is_available() else "none",
        "memory": _first_value("/proc/meminfo", "MemTotal") or "unknown",
        "system": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
        "versions": {name: version(name) for name in _PACKAGES},
    }


def _first_value(path: str, key: str) -> str | None:
    try:
        lines = Path(path).read_text(encoding="utf-8").splitlines()
    except OSError:
        return None
    pairs = (line.partition(":") for line in lines)
    return next((value.strip() for name, _, value in pairs if name.strip() == key), None)
