"""What a process group holds and uses, and what the rest of the machine uses meanwhile.

A page of a file that several processes of the group map is counted once; what other groups share
of it takes nothing away, so that the sum is what the group would need alone.
"""

import os
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

_TICK_S = 1 / os.sysconf("SC_CLK_TCK")
_BUSY_FIELDS = (0, 1, 2, 5, 6, 7)  # of /proc/stat: user, nice, system, irq, softirq, steal


@dataclass(frozen=True)
class Memory:
    """Resident: added up by process, and with shared pages counted once."""

    rss_mb: float
    resident_mb: float


def group_memory(group: int) -> Memory:
    """Of all processes of a group; zero when it has none."""
    rss_kb, anonymous_kb = 0, 0
    files_kb: Counter[str] = Counter()
    for process in _processes(group):
        sizes = parse_mappings(_read(process / "smaps"))
        rss_kb += sizes.rss_kb
        anonymous_kb += sizes.anonymous_kb
        files_kb |= sizes.files_kb  # the larger one of each
    return Memory(rss_kb / 1024, (anonymous_kb + files_kb.total()) / 1024)


@dataclass(frozen=True)
class Mappings:
    """Resident sizes of one process."""

    rss_kb: int
    anonymous_kb: int
    files_kb: Counter[str]  # by device and inode


def parse_mappings(text: str) -> Mappings:
    """The kernel's `smaps`: a header line for each mapping, then `Name: number kB` lines."""
    sizes: Counter[str] = Counter()
    files_kb: Counter[str] = Counter()
    file = ""
    for line in text.splitlines():
        name, *rest = line.split()
        if not name.endswith(":"):
            file = " ".join(rest[2:4])
        elif name in ("Rss:", "Anonymous:"):
            sizes[name] += int(rest[0])
            files_kb[file] += int(rest[0]) if name == "Rss:" else -int(rest[0])
    return Mappings(sizes["Rss:"], sizes["Anonymous:"], files_kb)


class MachineLoad:
    """Watches from its making on. Cores that others use make all times of a run doubtful."""

    def __init__(self, groups: Sequence[int]) -> None:
        self._groups = set(groups)
        self._start_s = time.monotonic()
        self._others_start_s = self._others_s()

    def cores_elsewhere(self) -> float:
        """Mean number of cores that neither this process nor the groups used."""
        seconds = time.monotonic() - self._start_s
        return max(0.0, (self._others_s() - self._others_start_s) / seconds)

    def _others_s(self) -> float:
        fields = _read(Path("/proc/stat")).split("\n", 1)[0].split()[1:]
        busy_s = _TICK_S * sum(int(fields[index]) for index in _BUSY_FIELDS)
        return busy_s - time.process_time() - sum(map(_group_cpu_s, self._groups))


def _group_cpu_s(group: int) -> float:
    stats = (_stat(process) for process in _processes(group))
    return _TICK_S * sum(int(fields[11]) + int(fields[12]) for fields in stats if fields)


def _processes(group: int) -> Iterator[Path]:
    for process in Path("/proc").glob("[0-9]*"):
        fields = _stat(process)
        if fields and int(fields[2]) == group:
            yield process


def _stat(process: Path) -> list[str]:
    """Fields from the third on: the second, in brackets, may hold anything."""
    return _read(process / "stat").rpartition(")")[2].split()


def _read(path: Path) -> str:
    """Empty when the process has ended."""
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
