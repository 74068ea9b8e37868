"""The whole profile of a deployment: step times first, then what drafted nodes are worth."""

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

from canopy.config import Deployment
from canopy.costs.profile import Profile
from canopy.costs.profile_file import fingerprint
from canopy.engine.step_times import StepDriver, StepSampler, StepTimes
from canopy.model_store.folders import model_folder
from canopy.models.config import ModelConfig
from canopy.profiling.outcome_recorder import joined
from canopy.profiling.recorder import record
from canopy.protocol.stages import Verifier
from canopy.verifier.construction import make_verifier

_OVERHEAD_MS = 1.5  # of a step on the server: three calls of a stage, and sending
_MIN_STEP_TOKENS = 512  # prompts of the measurement are computed in large pieces
_STEPS_SHARE = 0.5  # of the time

Progress = Callable[[str, float], None]  # phase, share done


@dataclass(frozen=True)
class Measurement:
    """A profile and the step times that its cost model was fitted to."""

    profile: Profile
    steps: StepTimes


def measure_profile(
    deployment: Deployment, seconds: float, on_progress: Progress = lambda phase, share: None
) -> Measurement:
    """Measure a deployment's stages in this process, for so long, loading them included.

    On a slow machine the profile is then a coarse one. Only what any profile needs, one step of
    every coarse kind, may take longer, and loading no more than half. Raises InvalidDeployment.
    The machine should have nothing else to do.
    """
    start = time.monotonic()
    limits = deployment.limits
    measured = replace(
        deployment,
        cache=replace(deployment.cache, prefix_reuse=True),
        limits=replace(limits, max_step_tokens=max(limits.max_step_tokens, _MIN_STEP_TOKENS)),
    )
    verifier = make_verifier(measured)
    end = max(start + seconds, time.monotonic() + seconds / 2)
    has_drafter = measured.drafter.source != "none"
    share = _STEPS_SHARE if has_drafter else 1.0
    steps = _measure_steps(
        verifier, deployment, share * (end - time.monotonic()), partial(on_progress, "step times")
    )
    profile = Profile(
        fingerprint=fingerprint(deployment),
        cost_model=steps.cost_model(),
        overhead_ms=_OVERHEAD_MS,
        is_coarse=steps.grid.is_coarse,
    )
    if has_drafter:
        show = partial(on_progress, "drafted nodes")
        profile = _with_drafter(profile, measured, verifier, end, show)
    return Measurement(profile, steps)


def _measure_steps(
    verifier: Verifier,
    deployment: Deployment,
    seconds: float,
    on_progress: Callable[[float], None],
) -> StepTimes:
    """As many cells, as often, as there is time for; the coarse ones once in any case."""
    vocab_size = ModelConfig.from_folder(model_folder(deployment.target.model)).vocab_size
    driver, sampler = StepDriver(verifier, vocab_size), StepSampler.of(deployment)
    start, by_time = time.monotonic(), 0.0
    while by_time < 1.0 or not sampler.is_usable:
        sampler.measure(driver)
        by_time = (time.monotonic() - start) / seconds
        on_progress(min(by_time, 1.0))
    driver.finish()
    return sampler.times


def _with_drafter(
    profile: Profile,
    deployment: Deployment,
    verifier: Verifier,
    end_s: float,
    on_progress: Callable[[float], None],
) -> Profile:
    """The profile with what the drafter costs and, where enough was seen, with what it brings."""
    recordings = record(deployment, verifier, end_s, on_progress)
    together = joined([recording.outcomes for recording in recordings.values()])
    profile = replace(profile, draft_ms=min(r.draft_ms for r in recordings.values()))
    if not together.are_enough:
        return profile
    seen = {
        name: r.outcomes if r.outcomes.are_enough else together for name, r in recordings.items()
    }
    return replace(
        profile,
        calibrations={name: outcomes.calibration() for name, outcomes in seen.items()},
        sibling_rates=together.sibling_rates(),
    )
