"""What the last step did, read off the engine's totals: the tree builder learns from it."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from canopy.engine.metrics import EngineMetrics


@dataclass(frozen=True)
class _Totals:
    num_rounds: int = 0
    num_drafted: int = 0
    num_accepted: int = 0
    verify_s: float = 0.0
    draft_s: float = 0.0
    step_s: float = 0.0


class StepStats:
    """Measures step by step; a step in which a prompt was computed does not count."""

    def __init__(self, metrics: EngineMetrics) -> None:
        self._metrics = metrics
        self._before = self._totals()
        self._num_decoding = 0  # sequences of the step under way, if no prompt is computed in it
        self._fields: dict[str, Any] = _fields(_Totals())

    def begin(self, num_running: int, num_prefilled: int) -> float | None:
        """A step starts: the totals since the last start belong to the step before it.

        Returns the milliseconds that that one took, None where it does not count.
        """
        now, before = self._totals(), self._before
        gained = _Totals(*(vars(now)[name] - vars(before)[name] for name in vars(now)))
        is_telling = self._num_decoding > 0 and gained.num_rounds == self._num_decoding
        self._fields = _fields(gained if is_telling else _Totals())
        self._before = now
        self._num_decoding = num_running if num_running == num_prefilled else 0
        return 1e3 * gained.step_s if is_telling else None

    @property
    def fields(self) -> dict[str, Any]:
        """The fields of BuildRequest that speak of the last step."""
        return self._fields

    def _totals(self) -> _Totals:
        metrics = self._metrics
        return _Totals(
            metrics.num_rounds,
            metrics.num_drafted_nodes,
            metrics.num_accepted_tokens,
            metrics.stage_seconds["verify"],
            metrics.stage_seconds["draft"],
            metrics.stage_seconds["total"],
        )


def _fields(step: _Totals) -> dict[str, Any]:
    return {
        "last_counts": np.array([step.num_rounds, step.num_drafted, step.num_accepted], np.int32),
        "last_times_ms": np.array(
            [1e3 * step.verify_s, 1e3 * step.draft_s, 1e3 * step.step_s], np.float32
        ),
    }
