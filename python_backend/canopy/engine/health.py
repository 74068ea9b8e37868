"""Alive, ready, busy: what the engine says of itself to whoever probes it.

alive   the engine serves, or will as soon as a stage is back: leave it running
ready   a request sent now is taken up: send it here
status  why it is not ready: busy (the queue is full), loading or silent (a stage), stopping
"""

from dataclasses import asdict, dataclass
from typing import Any

from canopy.engine.stage_health import STAGES, StageHealth, StageState

STUCK_AFTER_S = 60.0  # a stage that is silent for so long does not come back
MAX_FAILED_LOADS = 5


@dataclass(frozen=True)
class EngineHealth:
    """One answer to a probe."""

    is_alive: bool
    is_ready: bool
    status: str  # ready, busy, loading, silent, stopping or broken
    reason: str  # in words; "" when ready
    num_left: int  # requests accepted and not answered to their end
    num_running: int
    num_waiting: int
    num_places: int  # requests that would be accepted now
    stages: dict[str, str]

    def as_dict(self) -> dict[str, Any]:
        """As it is told to clients."""
        return asdict(self)


@dataclass(frozen=True)
class Load:
    """What the engine holds."""

    num_left: int
    num_running: int
    num_waiting: int
    num_places: int
    is_draining: bool


def health_of(load: Load, stages: StageHealth, is_running: bool) -> EngineHealth:
    """is_running: the engine's thread lives. Drafting may fail and nobody has to wait for it."""
    states = {stage: stages.state(stage) for stage in STAGES}
    broken = "" if is_running else "the engine has ended"
    broken = broken or _why_broken(stages)
    status, reason = _status(load, states, stages) if not broken else ("broken", broken)
    return EngineHealth(
        is_alive=not broken,
        is_ready=status == "ready",
        status=status,
        reason=reason,
        num_left=load.num_left,
        num_running=load.num_running,
        num_waiting=load.num_waiting,
        num_places=load.num_places,
        stages={stage: str(state) for stage, state in states.items()},
    )


def _why_broken(stages: StageHealth) -> str:
    call = stages.present_call
    if call is not None and call[1] > STUCK_AFTER_S:
        return f"{call[0]} has not answered for {call[1]:.0f} s"
    num_failed = stages.num_failed_loads("verifier")
    if num_failed >= MAX_FAILED_LOADS:
        return f"verifier could not be loaded again {num_failed} times"
    return ""


def _status(load: Load, states: dict[str, StageState], stages: StageHealth) -> tuple[str, str]:
    call = stages.present_call
    if load.is_draining:
        return "stopping", f"the server stops; {load.num_left} requests are left"
    if states["verifier"] is StageState.LOADING:
        return "loading", "verifier is being loaded"
    if call is not None and states[call[0]] is StageState.TIMEOUT:
        return "silent", f"{call[0]} has not answered for {call[1]:.1f} s"
    if load.num_places <= 0:
        return "busy", f"{load.num_running} requests run and {load.num_waiting} wait already"
    return "ready", ""
