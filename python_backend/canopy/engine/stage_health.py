"""Which stages answer, which are silent, and which are being loaded again.

A failed stage is loaded again on a thread of its own, beside the running steps, until that works.
"""

import itertools
import logging
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from enum import StrEnum

logger = logging.getLogger(__name__)

STAGES = ("draft", "tree_builder", "verifier")
SILENT_AFTER_S = 2.0  # of a call with work
SILENT_PING_S = 1.0  # of a call without
_MAX_PAUSE_S = 30.0


class StageState(StrEnum):
    """What is known of a stage."""

    READY = "ready"
    LOADING = "loading"  # for the first time, or again after it failed
    TIMEOUT = "silent"  # a call has not come back in the time that most take


class StageHealth:
    """Calls go through `calling`, on the engine's thread; any thread may look."""

    def __init__(
        self, restart: Callable[[str], None], record_failure: Callable[[str], None]
    ) -> None:
        """restart: loads a stage again, and raises when that fails."""
        self._restart = restart
        self._count_failure = record_failure
        self._answered: set[str] = set()
        self._loading: dict[str, threading.Thread] = {}
        self._num_failed_loads = dict.fromkeys(STAGES, 0)  # in a row
        self._call: tuple[str, float, float] | None = None  # stage, since when, silent from when
        self._is_stopped = threading.Event()

    @contextmanager
    def calling(self, stage: str, silent_after_s: float = SILENT_AFTER_S) -> Iterator[None]:
        """Around a call; one that raises is no answer."""
        now_s = time.monotonic()
        self._call = stage, now_s, now_s + silent_after_s
        try:
            yield
            self._answered.add(stage)
        finally:
            self._call = None

    def ping(self, stage: str, ping: Callable[[str], None]) -> None:
        """Ask a stage for nothing, unless it is being loaded. Raises what the ping raises."""
        if not self.is_loading(stage):
            with self.calling(stage, SILENT_PING_S):
                ping(stage)

    def reload(self, stage: str) -> None:
        """The stage failed: begin to load it again, unless that is under way."""
        self._count_failure(stage)
        if not self.is_loading(stage):
            thread = threading.Thread(target=self._load, args=(stage,), name="canopy-reload")
            thread.daemon = True
            self._loading[stage] = thread
            thread.start()

    def is_loading(self, stage: str, timeout_s: float = 0.0) -> bool:
        """Whether a failed stage is not back yet, and was not within the timeout either."""
        thread = self._loading.get(stage)
        if thread is None:
            return False
        thread.join(timeout_s)
        return thread.is_alive()

    def stop(self) -> None:
        """Load nothing again from now on."""
        self._is_stopped.set()

    # What is known

    def state(self, stage: str) -> StageState:
        """Of one stage."""
        call = self._call
        if self.is_loading(stage):
            return StageState.LOADING
        if call is not None and call[0] == stage and time.monotonic() > call[2]:
            return StageState.TIMEOUT
        return StageState.READY if stage in self._answered else StageState.LOADING

    @property
    def have_all_answered(self) -> bool:
        """Whether every stage has been there."""
        return len(self._answered) == len(STAGES)

    @property
    def present_call(self) -> tuple[str, float] | None:
        """The stage that is being asked, and for how many seconds."""
        call = self._call
        return None if call is None else (call[0], time.monotonic() - call[1])

    def num_failed_loads(self, stage: str) -> int:
        """How often in a row a stage could not be loaded again."""
        return self._num_failed_loads[stage]

    def _load(self, stage: str) -> None:
        """Try until it works, ever more rarely."""
        for attempt in itertools.count():
            if self._is_stopped.is_set():
                return
            try:
                self._restart(stage)
                self._num_failed_loads[stage] = 0
                return
            except Exception as error:
                logger.error("%s cannot be loaded again yet: %s", stage, error)
                self._count_failure(stage)
                self._num_failed_loads[stage] += 1
                self._is_stopped.wait(min(2.0**attempt, _MAX_PAUSE_S))
