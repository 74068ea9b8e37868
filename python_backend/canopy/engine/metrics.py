"""Counters and gauges of the engine: plain numbers here, published by whoever owns a registry."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

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
    stage_seconds: dict[str, float] = field(default_factory=lambda: dict.fromkeys(STAGES, 0.0))

    @contextmanager
    def timed(self, stage: str) -> Iterator[None]:
        """Adds the time of the block to a stage."""
        start = time.perf_counter()
        try:
            yield
        finally:
            self.stage_seconds[stage] += time.perf_counter() - start

    def count_failure(self, stage: str) -> None:
        self.num_stage_failures[stage] = self.num_stage_failures.get(stage, 0) + 1
