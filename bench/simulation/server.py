"""A server in simulated time: the real tree builder, a cost model for the verifier, random text.

Requests arrive, wait for a place, have their prompt computed in chunks that share the step with
the others' trees, and are answered; a step takes what the cost model says. The clock stands still
while the tree builder thinks.
"""

import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from bench.simulation.text import Template, Text, Texts
from canopy.config import TreeConfig
from canopy.costs.cost_model import CostModel
from canopy.costs.profile import Profile
from canopy.engine.draft_schedule import DraftSchedule
from canopy.protocol.messages import BuildReply, BuildRequest
from canopy.sampling import Acceptance, PolicyName
from canopy.tree.forest import split_ragged
from canopy.tree_builder.stage import PolicyTreeBuilder

_CHUNK = 512  # prompt tokens of a step


@dataclass(frozen=True)
class Machine:
    """What a step takes."""

    cost: CostModel
    draft_ms: float  # of a step that drafts
    draft_sequence_ms: float  # and of each sequence in it
    overhead_ms: float
    noise: float = 0.03  # spread of step times

    def drafting_ms(self, num_sequences: int) -> float:
        """Of one step."""
        return self.draft_ms + num_sequences * self.draft_sequence_ms


@dataclass(frozen=True)
class Arm:
    """One way to decode."""

    name: str
    policy: PolicyName
    node_budget: int


@dataclass(eq=False)
class Job:
    """One request."""

    arrival_ms: float
    num_prompt: int
    num_left: int
    text: Text
    first_ms: float = math.nan
    end_ms: float = math.nan


@dataclass
class Run:
    """What a simulation counted."""

    jobs: list[Job]
    num_tokens: int = 0
    num_rounds: int = 0
    num_nodes: int = 0
    num_accepted: int = 0
    busy_ms: float = 0.0
    end_ms: float = 0.0
    trace: list[tuple[float, int, float]] = field(default_factory=list)  # ms, running, nodes each


@dataclass(frozen=True)
class StepSize:
    """Whom a step serves."""

    num_running: int
    num_waiting: int
    num_prompt_tokens: int


class Simulation:
    """One arm on one machine."""

    def __init__(self, machine: Machine, arm: Arm, texts: Texts, max_running: int) -> None:
        self._machine, self._arm, self._texts = machine, arm, texts
        self._max_running = max_running
        profile = Profile(cost_model=machine.cost, overhead_ms=machine.overhead_ms, calibrations={})
        self._builder = PolicyTreeBuilder(TreeConfig(max_branch=8, max_depth=8), profile)
        self._rng = np.random.default_rng(7)
        self._schedule = DraftSchedule()
        self._last = (0, 0, 0, 0.0, 0.0, 0.0)

    def run(self, jobs: Sequence[Job]) -> Run:
        """Answer all jobs, which are ordered by arrival."""
        coming, running, clock_ms = deque(jobs), list[Job](), 0.0
        run = Run(list(jobs))
        while coming or running:
            if not running:
                clock_ms = max(clock_ms, coming[0].arrival_ms)
            while coming and coming[0].arrival_ms <= clock_ms and len(running) < self._max_running:
                running.append(coming.popleft())
            waiting = sum(job.arrival_ms <= clock_ms for job in coming)
            step_ms = self._step(running, waiting, clock_ms, run)
            clock_ms += step_ms
            run.busy_ms += step_ms
            running = [job for job in running if job.num_left > 0]
        run.end_ms = clock_ms
        return run

    def _step(self, running: Sequence[Job], num_waiting: int, clock_ms: float, run: Run) -> float:
        decoding = [job for job in running if job.num_prompt == 0]
        num_prompt_tokens = sum(job.num_prompt for job in running)
        prompt_rows = self._compute_prompts(running)
        fresh = [job for job in running if job.num_prompt == 0 and job not in decoding]
        proposals, trees, draft_ms = self._trees(
            decoding, StepSize(len(running), num_waiting, num_prompt_tokens)
        )
        num_nodes = sum(map(len, trees))
        rows = np.array([len(decoding) + num_nodes + prompt_rows])
        verify_ms = float(self._machine.cost.predict_ms(rows, len(running))[0])
        verify_ms *= math.exp(self._rng.normal(0.0, self._machine.noise))
        step_ms = verify_ms + draft_ms + self._machine.overhead_ms
        accepted = [
            self._advance(job, proposal, nodes, clock_ms + step_ms, run)
            for job, proposal, nodes in zip(decoding, proposals, trees, strict=True)
        ]
        for job in fresh:
            self._advance(job, None, set(), clock_ms + step_ms, run)
        run.num_nodes += num_nodes
        run.trace.append((clock_ms, len(running), num_nodes / max(len(running), 1)))
        is_telling = prompt_rows == 0 and len(decoding) > 0
        numbers = (len(decoding), num_nodes, sum(accepted), verify_ms, draft_ms, step_ms)
        self._last = numbers if is_telling else (0, 0, 0, 0.0, 0.0, 0.0)
        return step_ms

    def _compute_prompts(self, running: Sequence[Job]) -> int:
        """Rows of prompts in this step; the last of them gives a job its first token."""
        left = _CHUNK
        for job in running:
            share = min(job.num_prompt, left)
            job.num_prompt -= share
            left -= share
        return _CHUNK - left

    def _advance(
        self, job: Job, proposal: Template | None, nodes: set[int], now_ms: float, run: Run
    ) -> int:
        accepted = job.text.accepted(proposal, nodes) if proposal and nodes else 0
        emitted = min(accepted + 1, job.num_left)
        job.num_left -= emitted
        job.first_ms = now_ms if math.isnan(job.first_ms) else job.first_ms
        job.end_ms = now_ms
        run.num_tokens += emitted
        run.num_rounds += 1
        run.num_accepted += accepted
        return accepted

    def _trees(
        self, decoding: Sequence[Job], size: StepSize
    ) -> tuple[Sequence[Template | None], list[set[int]], float]:
        """Proposals, their verified nodes, and the time that drafting took."""
        is_skipped = self._schedule.skips(size.num_running, len(decoding))
        if self._arm.policy is PolicyName.OFF or not decoding or is_skipped:
            return [None] * len(decoding), [set() for _ in decoding], 0.0
        proposals = [self._texts.proposal(job.text) for job in decoding]
        reply = self._builder.build(self._request(proposals, size))
        self._schedule.set_next(int(reply.draft_next[0]), size.num_running)
        return proposals, _chosen(reply), self._machine.drafting_ms(len(decoding))

    def _request(self, proposals: Sequence[Template], size: StepSize) -> BuildRequest:
        num, arm = len(proposals), self._arm
        parents = np.concatenate([proposal.parents for proposal in proposals])
        return BuildRequest(
            num_nodes=np.array([len(proposal.parents) - 1 for proposal in proposals], np.int32),
            parents=parents,
            log_probs=np.concatenate([proposal.log_probs for proposal in proposals]),
            entropies=np.zeros(len(parents), np.float32),
            policies=np.full(num, arm.policy, np.int32),
            node_budgets=np.full(num, arm.node_budget, np.int32),
            acceptances=np.full(num, Acceptance.GREEDY, np.int32),
            num_running=np.array([size.num_running], np.int32),
            num_waiting=np.array([size.num_waiting], np.int32),
            num_prompt_tokens=np.array([size.num_prompt_tokens], np.int32),
            num_free_blocks=np.array([1 << 20], np.int32),
            last_counts=np.array(self._last[:3], np.int32),
            last_times_ms=np.array(self._last[3:], np.float32),
        )


def _chosen(reply: BuildReply) -> list[set[int]]:
    return [set(nodes.tolist()) for nodes in split_ragged(reply.selected, reply.num_selected)]
