"""Refines a coarse profile with the idle time of a running server.

A profile that was measured before the start had little time. Later, while nobody asks for
anything, the engine's thread measures the other step times with sequences of its own, one call of
the verifier at a time, so that a request waits for one step at most. Once every kind of step was
measured the profile is written, and the tree builder takes it up.
"""

import logging
import math
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path

from canopy.config import Deployment
from canopy.costs.profile import Profile
from canopy.costs.profile_file import find_profile, profile_path, save_profile
from canopy.engine.step_times import StepDriver, StepSampler
from canopy.errors import CanopyError
from canopy.protocol.stages import Verifier

logger = logging.getLogger(__name__)

_CALM_S = 1.0  # without a request, after which the server is idle
_SLICE_S = 0.5
_FIRST_ID = -1_000_000  # of its sequences; those of requests are positive


@dataclass
class ProfileRefiner:
    """Belongs to the engine's thread, as the verifier does."""

    profile: Profile
    path: Path
    sampler: StepSampler
    driver: StepDriver
    clock: Callable[[], float] = time.monotonic
    is_done: bool = False
    # Before its first request the server is no idle one, but one that starts.
    _worked_s: float = field(default=math.inf, init=False)
    _is_measuring: bool = field(default=False, init=False)

    @staticmethod
    def of(deployment: Deployment, verifier: Verifier, vocab_size: int) -> "ProfileRefiner | None":
        """None where there is no profile, or one that is fine, or none is to be measured."""
        found = find_profile(deployment)
        is_wanted = deployment.tree.profile_seconds > 0.0
        if found.fault or not (found.profile.is_coarse and is_wanted):
            return None
        return ProfileRefiner(
            found.profile,
            profile_path(deployment),
            StepSampler.of(deployment),
            StepDriver(verifier, vocab_size, _FIRST_ID),
        )

    def after_step(self, is_idle: Callable[[], bool]) -> None:
        """Measure for a moment, as long as nobody asks for anything. Raises nothing."""
        if self.is_done:
            return
        now_s = self.clock()
        try:
            if not is_idle():
                self._worked_s = now_s
                self._pause()
            elif now_s - self._worked_s >= _CALM_S:
                self._measure(is_idle, now_s + _SLICE_S)
        except (CanopyError, OSError, ValueError) as error:
            self.is_done = True
            with suppress(CanopyError):
                self._pause()
            logger.warning("the coarse profile stays as it is: %s", error)

    def _measure(self, is_idle: Callable[[], bool], end_s: float) -> None:
        self._is_measuring = True
        while is_idle() and self.clock() < end_s:
            self.sampler.measure(self.driver)
            if self.sampler.share >= 1.0:
                self._finish()
                return
        if not is_idle():
            self._worked_s = self.clock()
            self._pause()

    def _pause(self) -> None:
        """Give back what the sequences hold, for those of requests."""
        if self._is_measuring:
            self._is_measuring = False
            self.driver.finish()

    def _finish(self) -> None:
        self._pause()
        self.is_done = True
        times = self.sampler.times
        fine = replace(self.profile, cost_model=times.cost_model(), is_coarse=False)
        save_profile(fine.to_json(), self.path)
        logger.info("the profile %s is refined", self.path)
