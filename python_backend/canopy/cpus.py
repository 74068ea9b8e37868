"""What this machine's CPUs are, and how many of them this process may keep busy.

That number follows from its affinity mask and the CPU quota of its cgroups.

A container that is given "two CPUs" usually sees all of the machine's and is held back for the
rest of a period (100 ms) once its threads together have used up two CPUs' worth of it. More
threads than the quota allows therefore make every step slower.

    v2   <cgroup mount>/<group>/cpu.max                       "200000 100000", or "max 100000"
    v1   <mount of the cpu controller>/<group>/cpu.cfs_quota_us and cpu.cfs_period_us, -1: no limit

A limit of a group holds for the groups inside it, so every group up to the mount is looked at.
"""

import os
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

_CPU_INFO = Path("/proc/cpuinfo")
_MEMBERSHIP = Path("/proc/self/cgroup")
_MOUNTS = Path("/sys/fs/cgroup")


def has_matrix_tiles(cpu_info: Path = _CPU_INFO) -> bool:
    """Whether the CPU multiplies tiles of int8 (AMX)."""
    try:
        lines = cpu_info.read_text(encoding="utf-8").splitlines()
    except OSError:
        return False
    flags = next((line for line in lines if line.startswith("flags")), "")
    return "amx_int8" in flags.split()


def usable_cpus() -> int:
    """At least 1; a quota counts rounded down."""
    cpus = len(os.sched_getaffinity(0))
    return max(1, min([cpus, *map(int, cpu_quotas(_MEMBERSHIP, _MOUNTS))]))


def cpu_quotas(membership: Path, mounts: Path) -> Iterator[float]:
    """The limits, in CPUs, of every group that this process is in.

    membership: /proc/self/cgroup, lines `hierarchy:controllers:group`. mounts: where cgroup file
    systems are mounted. What cannot be read is no limit.
    """
    try:
        lines = membership.read_text(encoding="utf-8").splitlines()
    except OSError:
        return
    for line in lines:
        hierarchy, controllers, group = line.split(":", 2)
        if hierarchy == "0":
            roots = [mounts, mounts / "unified"]  # alone, or beside those of v1
        elif "cpu" in controllers.split(","):
            roots = [mounts / controllers, mounts / "cpu"]
        else:
            continue
        root = next((root for root in roots if root.is_dir()), mounts)
        inside = PurePosixPath(group.lstrip("/"))
        for part in (inside, *inside.parents):
            yield from _limit_of(root / part)


def _limit_of(group: Path) -> Iterator[float]:
    """None or one."""
    try:
        if (group / "cpu.max").is_file():
            quota, period = (group / "cpu.max").read_text(encoding="utf-8").split()
        else:
            quota, period = (
                (group / f"cpu.cfs_{name}_us").read_text(encoding="utf-8").strip()
                for name in ("quota", "period")
            )
        if quota not in ("max", "-1"):
            yield int(quota) / int(period)
    except (OSError, ValueError, ZeroDivisionError):
        return
