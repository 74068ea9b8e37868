"""The engine's numbers as custom metrics of the Triton server, prefix `canopy_`."""

import time
from collections.abc import Callable
from typing import Any

import triton_python_backend_utils as pb_utils

from canopy.engine.metrics import STAGES, EngineMetrics

# An update costs some 20 us, so the families are refreshed by the clock and not by the token.
_PUBLISH_INTERVAL_S = 0.1

COUNTERS = {
    "requests": ("Requests accepted", lambda m: m.num_requests),
    "requests_finished": ("Requests answered to the end", lambda m: m.num_finished),
    "requests_failed": ("Requests ended by an error", lambda m: m.num_failed),
    "cancellations": ("Requests cancelled or timed out", lambda m: m.num_cancelled),
    "preemptions": ("Sequences that gave back their KV blocks", lambda m: m.num_preempted),
    "turns": ("Passes of the engine loop", lambda m: m.num_turns),
    "rounds": ("Draft-build-verify-commit rounds of sequences", lambda m: m.num_rounds),
    "drafted_nodes": ("Drafted nodes that were verified", lambda m: m.num_drafted_nodes),
    "accepted_tokens": ("Drafted nodes that were accepted", lambda m: m.num_accepted_tokens),
    "emitted_tokens": ("Tokens emitted, after stop rules", lambda m: m.num_emitted_tokens),
}
GAUGES = {
    "running_sequences": ("Sequences served every turn", lambda m: m.running_sequences),
    "waiting_sequences": ("Requests waiting for a place", lambda m: m.waiting_sequences),
    "kv_blocks_free": ("KV cache blocks free", lambda m: m.free_blocks),
    "kv_blocks_used": ("KV cache blocks in use", lambda m: m.used_blocks),
    "node_budget": ("Drafted nodes a sequence in the last turn", lambda m: m.node_budget),
    "price_theta": ("Survival that a drafted node must have", lambda m: m.price_theta),
    "predicted_step_ms": ("Predicted time of a verify step", lambda m: m.predicted_step_ms),
    "measured_step_ms": ("Measured time of the last verify step", lambda m: m.measured_step_ms),
    "load_state": ("Server load known: 0 fresh, 1 stale, 2 not", lambda m: m.load_state),
}
_FAILING_STAGES = ("draft", "tree_builder", "verifier")


class MetricsPublisher:
    """Keeps the server's metric families in step with an EngineMetrics."""

    def __init__(self, metrics: EngineMetrics) -> None:
        self._metrics = metrics
        self._published_s = 0.0
        self._updates: list[Callable[[], None]] = []
        self._families: list[Any] = []  # a family lives as long as it is referenced
        for name, (description, read) in COUNTERS.items():
            self._add_counter(self._family(f"{name}_total", description), {}, read)
        for name, (description, read) in GAUGES.items():
            self._add_gauge(self._family(name, description, pb_utils.MetricFamily.GAUGE), read)
        seconds = self._family("stage_seconds_total", "Time spent by stage of the turn")
        for stage in STAGES:
            self._add_counter(seconds, {"stage": stage}, _seconds_of(stage))
        failures = self._family("stage_failures_total", "Failed calls and restarts by stage")
        for stage in _FAILING_STAGES:
            self._add_counter(failures, {"stage": stage}, _failures_of(stage))
        self.publish()

    def publish_when_due(self, is_idle: bool) -> None:
        """Refresh by the clock, and always when the engine falls idle."""
        if is_idle or time.monotonic() - self._published_s >= _PUBLISH_INTERVAL_S:
            self.publish()

    def publish(self) -> None:
        """Refresh every family now."""
        self._published_s = time.monotonic()
        for update in self._updates:
            update()

    def _family(self, name: str, description: str, kind: Any = None) -> Any:
        family = pb_utils.MetricFamily(
            name=f"canopy_{name}",
            description=description,
            kind=pb_utils.MetricFamily.COUNTER if kind is None else kind,
        )
        self._families.append(family)
        return family

    def _add_counter(
        self, family: Any, labels: dict[str, str], read: Callable[[EngineMetrics], float]
    ) -> None:
        metric = family.Metric(labels=labels)
        told = 0.0

        def update() -> None:
            nonlocal told
            total = read(self._metrics)
            if total > told:
                metric.increment(total - told)
                told = total

        self._updates.append(update)

    def _add_gauge(self, family: Any, read: Callable[[EngineMetrics], float]) -> None:
        metric = family.Metric(labels={})
        self._updates.append(lambda: metric.set(read(self._metrics)))


def _seconds_of(stage: str) -> Callable[[EngineMetrics], float]:
    return lambda metrics: metrics.stage_seconds[stage]


def _failures_of(stage: str) -> Callable[[EngineMetrics], float]:
    return lambda metrics: metrics.num_stage_failures.get(stage, 0)
