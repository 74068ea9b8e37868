"""Counters, gauges and histograms of the engine: plain numbers here, published by whoever owns a
registry (metric_families.py says under which names)."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from canopy.engine.histogram import Histogram
from canopy.engine.request import EngineSequence
from canopy.protocol.messages import BuildReply, DraftReply
from canopy.tree import DraftTree

STAGES = ("draft", "build", "verify", "commit", "total")
MAX_DEPTH = 16  # what lies deeper is counted there
MAX_RANK = 8


def _histogram(*bounds: float) -> Any:
    return field(default_factory=lambda: Histogram(*bounds))


@dataclass
class EngineMetrics:
    """Totals since start (counters, histograms) and the present state (gauges)."""

    num_requests: int = 0
    num_finished: int = 0
    num_failed: int = 0
    num_cancelled: int = 0
    num_preempted: int = 0
    num_steps: int = 0
    num_rounds: int = 0
    num_drafted_nodes: int = 0
    num_accepted_tokens: int = 0
    num_emitted_tokens: int = 0
    num_failed_proposals: int = 0
    num_stage_failures: dict[str, int] = field(default_factory=dict)
    accepted_by_depth: list[int] = field(default_factory=lambda: [0] * MAX_DEPTH)  # from depth 1
    accepted_by_rank: list[int] = field(default_factory=lambda: [0] * MAX_RANK)  # first child first
    running_sequences: int = 0
    waiting_sequences: int = 0
    free_blocks: int = 0
    used_blocks: int = 0
    node_budget: float = 0.0  # drafted nodes a sequence in this step
    node_price: float = 0.0  # survival that a node must have
    log_odds_correction: float = 0.0  # of the log-odds of every edge, as learned while serving
    predicted_verify_ms: float = 0.0  # of verifying the last step with trees
    measured_verify_ms: float = 0.0  # of verifying the last step
    source_failures: int = 0  # proposal sources missing or failing, of the present draft stage
    load_state: int = 0  # policy.load.LoadState of the tree builder
    stage_seconds: dict[str, float] = field(default_factory=lambda: dict.fromkeys(STAGES, 0.0))
    acceptance_length: Histogram = _histogram(1, 2, 3, 4, 5, 6, 8, 12, 16)
    queue_s: Histogram = _histogram(0.01, 0.05, 0.1, 0.5, 1, 5, 10, 30, 60)
    first_token_s: Histogram = _histogram(0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30)
    inter_token_s: Histogram = _histogram(
        0.001, 0.0025, 0.005, 0.01, 0.015, 0.025, 0.05, 0.1, 0.25, 0.5, 1
    )
    request_s: Histogram = _histogram(0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120)

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
                self.measured_verify_ms = 1e3 * seconds

    def note_build(self, built: BuildReply, num_running: int) -> None:
        """What the tree builder decided for a step of so many sequences."""
        self.num_failed_proposals += int(built.num_failed.sum())
        self.node_budget = len(built.selected) / max(num_running, 1)
        self.node_price = float(built.price[0])
        self.log_odds_correction = float(built.log_odds_correction[0])
        self.predicted_verify_ms = float(built.predicted_ms[0])
        self.load_state = int(built.load_state[0])

    def note_draft(self, reply: DraftReply) -> None:
        """What the draft stage tells about itself."""
        self.num_failed_proposals += int(reply.num_failed.sum())
        if len(reply.num_source_failures):
            self.source_failures = int(reply.num_source_failures[0])

    def record_failure(self, stage: str) -> None:
        self.num_stage_failures[stage] = self.num_stage_failures.get(stage, 0) + 1

    def record_admission(self, sequence: EngineSequence) -> None:
        """A sequence leaves the queue; one that was preempted has been here before."""
        if sequence.counts.num_preemptions == 0:
            self.queue_s.observe(time.monotonic() - sequence.arrived_s)

    def record_round(self, tree: DraftTree | None, token_ids: list[int], num_accepted: int) -> None:
        """A round that verified `tree` (None: the anchor alone) and emitted these tokens."""
        self.num_rounds += 1
        self.num_accepted_tokens += num_accepted
        self.acceptance_length.observe(num_accepted + 1)
        if tree is None:
            return
        self.num_drafted_nodes += tree.num_nodes
        ranks = tree.sibling_ranks(tree.follow(token_ids[:num_accepted]))
        for depth, rank in enumerate(ranks):
            self.accepted_by_depth[min(depth, MAX_DEPTH - 1)] += 1
            self.accepted_by_rank[min(rank, MAX_RANK - 1)] += 1

    def record_emitted(self, sequence: EngineSequence, num_tokens: int) -> None:
        """Tokens of one round reach the client together: each took its share of the time since
        the round before."""
        if num_tokens == 0:
            return
        now = time.monotonic()
        self.num_emitted_tokens += num_tokens
        if sequence.emitted_s is None:
            self.first_token_s.observe(now - sequence.arrived_s)
        else:
            self.inter_token_s.observe((now - sequence.emitted_s) / num_tokens, num_tokens)
        sequence.emitted_s = now

    def record_finished(self, sequence: EngineSequence) -> None:
        """A request was answered to its end."""
        self.num_finished += 1
        self.request_s.observe(time.monotonic() - sequence.arrived_s)
