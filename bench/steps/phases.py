"""Where the time of an int8 step goes, phase by phase, as it runs on its team of workers.

The decoder hands one compiled function to its threads, which wait at a barrier between phases.
Here the threads run a variant of that function, compiled from its own source, in which the first
worker reads the clock at every barrier; nothing else is changed. A phase is named after the
function that computes it, a linear after its weights.
"""

import ast
import inspect
import textwrap
from collections import defaultdict
from collections.abc import Callable, Sequence
from functools import cache
from statistics import median
from typing import Any
from unittest.mock import patch

import numpy as np
from numba import njit, types

from bench.harness.benchmark import Record
from bench.steps.cases import Case, StepTimer
from canopy.config import TargetConfig
from canopy_kernels.cpu.threads import WorkerThreads, barrier

PHASE_CASES = (Case(1, 1), Case(1, 8), Case(1, 17), Case(32, 1))
_MOST_TICKS = 1 << 14
_MONOTONIC = 1  # CLOCK_MONOTONIC of Linux
_GROUPS = {
    "head": ("head",),
    "linears": ("qkv", "output", "gate_up", "down"),
    "attention": ("attend_partition",),
    "rope, cache write": ("place_heads",),
}
_LINEARS = (*_GROUPS["head"], *_GROUPS["linears"])
_REST = "norms, gate, quantizing"

_clock_gettime = types.ExternalFunction("clock_gettime", types.int32(types.int32, types.intp))


@njit(cache=True, nogil=True)
def tick(clock, phase, context):
    """Note the time at the end of a phase; clock: int64 [n, 3], its row 0 counts the others."""
    if context.worker == 0 and clock[0, 0] + 1 < len(clock):
        clock[0, 0] += 1
        row = clock[clock[0, 0]]
        row[0] = phase
        _clock_gettime(_MONOTONIC, row[1:].ctypes.data)


class TimedTeam(WorkerThreads):
    """A team that knows afterwards how long each phase of its last run took."""

    def __init__(self, num_workers: int) -> None:
        super().__init__(num_workers)
        self._clock = np.zeros((_MOST_TICKS, 3), np.int64)
        self._names: list[str] = []

    def run(self, function: Callable[..., None], *arguments: Any) -> None:
        """As the team does, with the clock running."""
        timed, self._names = with_ticks(function)
        self._clock[0] = 0
        super().run(timed, *arguments, self._clock)

    def phase_ms(self) -> dict[str, float]:
        """Milliseconds of each phase, summed over layers."""
        rows = self._clock[1 : self._clock[0, 0] + 1]
        times_ms = 1e3 * rows[:, 1] + 1e-6 * rows[:, 2]
        phases: dict[str, float] = defaultdict(float)
        for phase, spent_ms in zip(rows[1:, 0].tolist(), np.diff(times_ms).tolist(), strict=True):
            phases[self._names[phase]] += spent_ms
        return dict(phases)


@cache
def with_ticks(function: Any) -> tuple[Callable[..., None], list[str]]:
    """The variant of a compiled function that ticks, `clock` before `context` in its arguments;
    and the names of its phases by number."""
    source = textwrap.dedent(inspect.getsource(function.py_func))
    tree = ast.parse(source)
    definition = tree.body[0]
    assert isinstance(definition, ast.FunctionDef)
    definition.decorator_list = []
    definition.args.args.insert(-1, ast.arg("clock"))
    names = ["start"]
    definition.body = [*_ticking(0), *_ticked(definition.body, names)]
    namespace = {**function.py_func.__globals__, "_tick": tick, "_barrier": barrier}
    exec(compile(ast.fix_missing_locations(tree), "<timed>", "exec"), namespace)
    return njit(nogil=True, error_model="numpy")(namespace[definition.name]), names


def _ticking(phase: int) -> list[ast.stmt]:
    return ast.parse(f"_barrier(context)\n_tick(clock, {phase}, context)").body


def _ticked(body: Sequence[ast.stmt], names: list[str]) -> list[ast.stmt]:
    """The statements with a tick wherever workers wait for each other, and at the end."""
    ticked: list[ast.stmt] = []
    pending: list[ast.stmt] = []
    for statement in body:
        if isinstance(statement, ast.For):
            statement.body = _ticked(statement.body, names)
            ticked.append(statement)
        elif _is_barrier(statement):
            names.append(_phase_name(pending))
            ticked += [*pending, *_ticking(len(names) - 1)]
            pending = []
        else:
            pending.append(statement)
    if pending:
        names.append(_phase_name(pending))
        ticked += [*pending, *_ticking(len(names) - 1)]
    return ticked


def _is_barrier(statement: ast.stmt) -> bool:
    return isinstance(statement, ast.Expr) and ast.unparse(statement) == "barrier(context)"


def _phase_name(statements: Sequence[ast.stmt]) -> str:
    """Of a linear its weights, of anything else the first function that is called."""
    calls = [node for s in statements for node in ast.walk(s) if isinstance(node, ast.Call)]
    attributes = [
        node for s in statements for node in ast.walk(s) if isinstance(node, ast.Attribute)
    ]
    for node in attributes:
        if ast.unparse(node.value) == "weights" and node.attr in _LINEARS:
            return node.attr
    return ast.unparse(calls[0].func).lstrip("_") if calls else "other"


def timed_steps(target: TargetConfig, cases: Sequence[Case]) -> tuple[StepTimer, TimedTeam]:
    """A timer of steps of an int8 target, and the team that computes them."""
    teams: list[TimedTeam] = []

    def team(num_workers: int) -> TimedTeam:
        teams.append(TimedTeam(num_workers))
        return teams[-1]

    with patch("canopy.models.quantized.decoder.WorkerThreads", team):
        timer = StepTimer.of_target(target, cases)
    return timer, teams[-1]


def measure_phases(
    target: TargetConfig, repeats: int, cases: Sequence[Case] = PHASE_CASES
) -> list[Record]:
    """Median milliseconds by group of phases and case; the first step of a case warms up."""
    timer, team = timed_steps(target, cases)
    times: dict[Case, list[dict[str, float]]] = {case: [] for case in cases}
    for _ in range(repeats + 1):
        for case in cases:
            seconds = timer.seconds(case)
            times[case].append(_grouped(team.phase_ms()) | {"whole step": 1e3 * seconds})
    names = times[cases[0]][0]
    return [
        {"phase": name} | {_title(case): median(t[name] for t in times[case][1:]) for case in cases}
        for name in names
    ]


def _grouped(phases: dict[str, float]) -> dict[str, float]:
    groups = {group: sum(phases.get(n, 0.0) for n in names) for group, names in _GROUPS.items()}
    return groups | {_REST: sum(phases.values()) - sum(groups.values())}


def _title(case: Case) -> str:
    sequences = f"{case.num_sequences} sequences" if case.num_sequences > 1 else ""
    rows = "1 row" if case.num_rows == 1 else f"{case.num_rows} rows"
    return f"ms, {sequences or rows}"
