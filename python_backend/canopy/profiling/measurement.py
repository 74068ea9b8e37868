"""The whole profile of a deployment: step times first, then what drafted nodes are worth."""

from collections.abc import Callable
from dataclasses import dataclass, replace

from canopy.config import Deployment
from canopy.costs.cost_model import fit
from canopy.costs.profile import Profile
from canopy.costs.profile_file import fingerprint
from canopy.model_store.folders import model_folder
from canopy.models.config import ModelConfig
from canopy.profiling.outcome_recorder import joined
from canopy.profiling.recorder import record
from canopy.profiling.step_times import StepGrid, StepTimes, measure_steps
from canopy.protocol.stages import Verifier
from canopy.verifier.stage import make_verifier

_OVERHEAD_MS = 1.5  # of a step on the server: three calls of a stage, and sending
_MAX_SEQUENCES = 32
_MIN_STEP_TOKENS = 512  # prompts of the measurement are computed in large pieces
_PERCENTILE = 25.0  # of step times: what others do on the machine only ever adds
_STEPS_SHARE = 0.6  # of the time

Progress = Callable[[str, float], None]  # phase, share done


@dataclass(frozen=True)
class Measurement:
    """A profile and the step times that its cost model was fitted to."""

    profile: Profile
    steps: StepTimes


def measure_profile(
    deployment: Deployment, seconds: float, on_progress: Progress = lambda phase, share: None
) -> Measurement:
    """Measure a deployment's stages in this process, for about so long.

    Raises InvalidDeployment. The machine should have nothing else to do.
    """
    limits = deployment.limits
    measured = replace(
        deployment,
        cache=replace(deployment.cache, prefix_reuse=True),
        limits=replace(limits, max_step_tokens=max(limits.max_step_tokens, _MIN_STEP_TOKENS)),
    )
    verifier = make_verifier(measured)
    vocab_size = ModelConfig.from_folder(model_folder(deployment.target.model)).vocab_size
    grid = StepGrid.up_to(min(limits.max_running, _MAX_SEQUENCES))
    steps = measure_steps(
        verifier,
        vocab_size,
        grid,
        _STEPS_SHARE * seconds,
        lambda share: on_progress("step times", share),
    )
    profile = Profile(
        fingerprint=fingerprint(deployment),
        cost_model=fit(grid.sequences, grid.tokens, steps.table(_PERCENTILE)),
        overhead_ms=_OVERHEAD_MS,
    )
    if measured.drafter.source != "none":
        profile = _with_drafter(
            profile,
            measured,
            verifier,
            (1.0 - _STEPS_SHARE) * seconds,
            lambda share: on_progress("drafted nodes", share),
        )
    return Measurement(profile, steps)


def _with_drafter(
    profile: Profile,
    deployment: Deployment,
    verifier: Verifier,
    seconds: float,
    on_progress: Callable[[float], None],
) -> Profile:
    """The profile with what the drafter costs and, where enough was seen, with what it brings."""
    recordings = record(deployment, verifier, seconds, on_progress)
    seen = {name: r.outcomes for name, r in recordings.items() if r.outcomes.are_enough}
    profile = replace(profile, draft_ms=min(r.draft_ms for r in recordings.values()))
    if not seen:
        return profile
    return replace(
        profile,
        calibrations={name: outcomes.calibration() for name, outcomes in seen.items()},
        sibling_rates=joined(list(seen.values())).sibling_rates(),
    )
