"""The engine loop: iteration-level continuous batching over three stages.

    step = drop cancelled and expired -> admit -> draft -> build -> verify -> commit and stream

Each stage is asked once a step for all running sequences. The loop is the same in a test, in a
benchmark and in the server; only the stages behind the Protocols differ.
"""

import logging
from collections.abc import Callable
from dataclasses import replace

import numpy as np

from canopy.engine.health import EngineHealth, health_of
from canopy.engine.metrics import EngineMetrics
from canopy.engine.output import Delta, Sink
from canopy.engine.prompt_budget import PromptBudget
from canopy.engine.request import EngineSequence, GenerationRequest
from canopy.engine.request_queue import SHUTTING_DOWN, EngineLimits, RequestQueue, Reservation
from canopy.engine.sequence_result import SequenceResult, sequence_results
from canopy.engine.speculator import DraftedTrees, Speculator
from canopy.engine.stage_health import STAGES, StageHealth
from canopy.engine.stage_sync import StageSyncState
from canopy.engine.stages import Stages
from canopy.engine.trace import TracedStep
from canopy.errors import Cancelled, CanopyError, ServerStopping, StageFailed
from canopy.protocol.messages import Status, VerifyReply, VerifyRequest

logger = logging.getLogger(__name__)

# After so many failures in a row a restart does not help.
_MAX_VERIFIER_FAILURES = 3
_MAX_LOSSES = 3  # times in a row that the verifier may not know a sequence
_PING_S = 0.5
_FIRST_PING_S = 0.1  # while stages are loaded for the first time
_LOADING_POLL_S = 0.05  # between two looks at the requests while the verifier is loaded again


class Engine:
    """Owns every request from `submit` to its last response.

    `reserve` and `submit` may be called from any thread; `step` and `run` belong to one.
    """

    def __init__(
        self, stages: Stages, limits: EngineLimits, decode: Callable[[list[int]], str]
    ) -> None:
        self.metrics = EngineMetrics(free_blocks=limits.num_blocks)
        self._stages = stages
        self._decode = decode
        self._stage_health = StageHealth(stages.restart, self.metrics.record_failure)
        self._prompt_budget = PromptBudget(
            limits.max_step_tokens, limits.max_prompt_slowdown, limits.cost_model
        )
        self._speculator = Speculator(stages, self._stage_health, self.metrics, self._prompt_budget)
        self._verifier_sync = StageSyncState()
        self._verifier_failures = 0
        self._queue = RequestQueue(limits, self.metrics)
        self._is_stopped = False
        self._is_asked = False  # somebody was here: the server is open, and has loaded its stages

    # Requests come in

    def reserve(self) -> Reservation:
        """A place for a request. Raises Unavailable when all are taken or the engine drains."""
        self._is_asked = True
        return self._queue.reserve()

    def submit(
        self, request: GenerationRequest, sink: Sink, reservation: Reservation | None = None
    ) -> None:
        """Queue a request at its place, or at a new one. Raises Unavailable."""
        place = reservation or self.reserve()
        sequence = EngineSequence(request, sink, self._decode, arrived_s=place.arrived_s)
        self._queue.add(sequence, place)

    def health(self, is_running: bool = True) -> EngineHealth:
        """What probes are told, from any thread. is_running: a thread is inside `run`."""
        self._is_asked = True
        return health_of(self._queue.load(), self._stage_health, is_running)

    def drain(self) -> None:
        """Refuse new requests; those accepted go on to their end."""
        self._queue.drain()

    def stop(self) -> None:
        """End `run`; what is still running fails with Unavailable."""
        self._is_stopped = True
        self._stage_health.stop()
        self._queue.drain()

    # The loop

    def run(self, after_step: Callable[[], None] = lambda: None) -> None:
        """Serve until `stop`. Every accepted request ends, whatever happens in a step."""
        while not self._is_stopped:
            if not self.has_work:
                self._queue.wait(_PING_S if self._stage_health.have_all_answered else _FIRST_PING_S)
            try:
                if self.has_work:
                    self.step()
                elif self._is_asked:
                    self._ping_stages()
                after_step()
            except Exception as error:
                logger.exception("a step failed")
                self._fail_all(CanopyError(f"the engine failed: {error!r}"))
        self._queue.close()
        self._fail_all(SHUTTING_DOWN)

    def _ping_stages(self) -> None:
        """A stage that dies while nothing runs is brought back before anybody needs it."""
        for stage in STAGES:
            try:
                self._stage_health.ping(stage, self._stages.ping)
            except StageFailed as error:
                self._note_failure(error)

    @property
    def has_work(self) -> bool:
        return bool(len(self._queue) or self._verifier_sync.has_pending_finishes)

    @property
    def is_idle(self) -> bool:
        """Nothing to do, and more may come."""
        return not (self.has_work or self._is_stopped)

    def step(self) -> None:
        """Serve every running sequence once."""
        with self.metrics.timed("total"):
            self._drop_cancelled_and_expired()
            self._queue.admit()
            has_pending_finishes = (
                bool(self._queue.running) or self._verifier_sync.has_pending_finishes
            )
            if has_pending_finishes and not self._stage_health.is_loading(
                "verifier", _LOADING_POLL_S
            ):
                self._serve()
        self.metrics.running_sequences = len(self._queue.running)
        self.metrics.waiting_sequences = self._queue.num_waiting

    def _serve(self) -> None:
        self.metrics.num_steps += 1
        try:
            trees = self._speculator.propose(self._queue.running, self._queue.num_waiting)
            with self.metrics.timed("verify"), self._stage_health.calling("verifier"):
                reply = self._verify(trees)
        except StageFailed as error:
            self._note_failure(error)
            return
        self._verifier_failures = 0
        self._speculator.record_hidden_states(self._queue.running, reply)
        with self.metrics.timed("commit"):
            self._commit(trees, reply)

    def _verify(self, trees: DraftedTrees) -> VerifyReply:
        running = self._queue.running
        rows = np.array([self._prompt_budget.rows(running)], np.int32)
        return self._stages.verifier.verify(
            VerifyRequest(
                **self._verifier_sync.starts(running),
                **trees.fields(running),
                max_prompt_rows=rows,
            )
        )

    # Sequences come and go

    def _drop_cancelled_and_expired(self) -> None:
        for sequence in self._queue.sequences:
            if sequence.sink.is_cancelled():
                self.metrics.num_cancelled += 1
                self._end(sequence, Cancelled("the client cancelled the request"))
            elif sequence.is_overdue:
                self.metrics.num_cancelled += 1
                self._end(sequence, Cancelled(f"not done within {sequence.request.timeout_s:g} s"))

    def _commit(self, trees: DraftedTrees, reply: VerifyReply) -> None:
        self.metrics.free_blocks = int(reply.num_free_blocks[0])
        self.metrics.used_blocks = int(reply.num_used_blocks[0])
        results = sequence_results(reply)
        step = TracedStep(self.metrics.measured_verify_ms, len(results))
        for sequence, result in zip(list(self._queue.running), results, strict=True):
            try:
                self._follow(sequence, trees, result, step)
            except Exception as error:  # whatever one sequence raises ends that one
                logger.exception("sequence %d cannot be continued", sequence.id)
                self._fail(sequence, CanopyError(f"the answer cannot be continued: {error!r}"))

    def _follow(
        self,
        sequence: EngineSequence,
        trees: DraftedTrees,
        result: SequenceResult,
        step: TracedStep,
    ) -> None:
        """What the verifier says of one sequence."""
        if result.prompt_logprobs:
            sequence.record_prompt_logprobs(result.first_prompt_logprob, result.prompt_logprobs)
        if result.status is Status.DECODED:
            self._decoded(sequence, trees, result, step)
        elif result.status is Status.PREEMPTED:
            self._preempt(sequence)
        elif result.status is Status.FAILED:
            self._fail(sequence, CanopyError(result.failure or "it cannot go on"))
        elif result.status is Status.UNKNOWN:
            self._start_again(sequence)

    def _decoded(
        self,
        sequence: EngineSequence,
        trees: DraftedTrees,
        result: SequenceResult,
        step: TracedStep,
    ) -> None:
        """A sequence's round: count it, take its tokens up, send what can be shown."""
        num_before = sequence.num_emitted
        sequence.counts.num_cached_tokens = result.num_cached_tokens
        sequence.counts.add_round(trees.num_nodes(sequence), result.num_accepted)
        self.metrics.record_round(trees.tree(sequence), result.token_ids, result.num_accepted)
        self._speculator.record_round(sequence, trees, result.num_accepted, step.num_running)
        sequence.is_prefilled, sequence.num_losses = True, 0
        delta = sequence.emit(result.token_ids, result.finish, result.logprobs)
        kept = result.token_ids[: sequence.num_emitted - num_before]
        self.metrics.record_emitted(sequence, len(kept))
        if sequence.trace is not None:
            traced = trees.traced_tree(sequence, sequence.token_ids[-len(kept) - 1])
            sequence.trace.add(traced, kept, result.num_accepted, step)
        if delta is not None:
            self._send(sequence, delta)

    def _send(self, sequence: EngineSequence, delta: Delta) -> None:
        if delta.is_last:
            self._drop(sequence)
            self.metrics.record_finished(sequence)
        if sequence.trace is not None:
            delta = replace(delta, rounds=sequence.trace.take())
        sequence.sink.send(delta)
        if delta.is_last:
            self._queue.end(sequence)

    def _start_again(self, sequence: EngineSequence) -> None:
        """The verifier knows nothing of a sequence, or something else than the engine."""
        self._verifier_sync.forget(sequence.id)
        sequence.is_prefilled = False
        sequence.num_losses += 1
        if sequence.num_losses > _MAX_LOSSES:
            self._fail(sequence, CanopyError("the verifier cannot take up its tokens"))

    def _preempt(self, sequence: EngineSequence) -> None:
        """Back to the front of the queue; its tokens are kept and computed again later."""
        self.metrics.num_preempted += 1
        sequence.counts.num_preemptions += 1
        sequence.is_prefilled = False
        self._verifier_sync.forget(sequence.id)
        self._queue.preempt(sequence)

    def _end(self, sequence: EngineSequence, error: CanopyError) -> None:
        self._drop(sequence)
        sequence.sink.fail(error)
        self._queue.end(sequence)

    def _drop(self, sequence: EngineSequence) -> None:
        self._verifier_sync.finish(sequence.id)
        self._speculator.finish(sequence.id)
        self._queue.drop(sequence)

    # Failure

    def _note_failure(self, error: StageFailed) -> None:
        """Bring the stage back and recompute; no stream breaks unless the verifier keeps failing.

        A stage that the server itself has ended is not brought back: the engine ends with it.
        """
        logger.error("a stage failed: %s", error)
        if isinstance(error, ServerStopping):
            self.stop()
        elif error.stage != "verifier":
            self._speculator.note_failure(error.stage)
        else:
            self._verifier_sync.forget_all()
            for sequence in self._queue.running:
                sequence.is_prefilled = False
            self._verifier_failures += 1
            if self._verifier_failures >= _MAX_VERIFIER_FAILURES:
                self._verifier_failures = 0
                self._fail_all(error)
            self._stage_health.reload(error.stage)

    def _fail(self, sequence: EngineSequence, error: CanopyError) -> None:
        self.metrics.num_failed += 1
        self._end(sequence, error)

    def _fail_all(self, error: CanopyError) -> None:
        """Whatever ends while the server stops ends for that reason."""
        for sequence in self._queue.sequences:
            self._fail(sequence, SHUTTING_DOWN if self._queue.is_draining else error)
