"""Counters and gauges of the engine: plain numbers here, published by whoever owns a registry."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from canopy.messages import BuildReply

STAGES = ("draft", "build", "verify", "commit", "total")


@dataclass
class EngineMetrics:
    """Totals since start (counters) and the present state (gauges)."""

    num_requests: int = 0
    num_finished: int = 0
    num_failed: int = 0
    num_cancelled: int = 0
    num_preempted: int = 0
    num_turns: int = 0
    num_rounds: int = 0
    num_drafted_nodes: int = 0
    num_accepted_tokens: int = 0
    num_emitted_tokens: int = 0
    num_stage_failures: dict[str, int] = field(default_factory=dict)
    running_sequences: int = 0
    waiting_sequences: int = 0
    free_blocks: int = 0
    used_blocks: int = 0
    node_budget: float = 0.0  # drafted nodes a sequence in this turn
    price_theta: float = 0.0  # survival that a node must have
    predicted_step_ms: float = 0.0  # of verifying the last turn with trees
    measured_step_ms: float = 0.0  # of verifying the last turn
    load_state: int = 0  # policy.load.LoadState of the tree builder
    stage_seconds: dict[str, float] = field(default_factory=lambda: dict.fromkeys(STAGES, 0.0))

    @contextmanager
    def timed(self, stage: str) -> Iterator[None]:
        """Adds the time of the block to a stage."""
        start = time.perf_counter()
        try:
            yield
        finally:
            seconds = time.perf_counter() - start
            self.stage_seconds[stage] += seconds
            if stage == "verify":
                self.measured_step_ms = 1e3 * seconds

    def note_build(self, built: BuildReply, num_running: int) -> None:
        """What the tree builder decided for a turn of so many sequences."""
        self.node_budget = len(built.selected) / max(num_running, 1)
        self.price_theta = float(built.theta[0])
        self.predicted_step_ms = float(built.predicted_ms[0])
        self.load_state = int(built.load_state[0])

    def count_failure(self, stage: str) -> None:
        self.num_stage_failures[stage] = self.num_stage_failures.get(stage, 0) + 1
