"""The engine loop: iteration-level continuous batching over three stages.

    step = drop cancelled and expired -> admit -> draft -> build -> verify -> commit and stream

Each stage is asked once a step for all running sequences. The loop is the same in a test, in a
benchmark and in the server; only the stages behind the Protocols differ.
"""

import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, replace

from canopy.engine.metrics import EngineMetrics
from canopy.engine.output import Delta, Sink
from canopy.engine.request import EngineSequence, GenerationRequest
from canopy.engine.speculator import DraftedTrees, Speculator
from canopy.engine.stage_sync import StageSyncState
from canopy.engine.trace import TracedStep
from canopy.errors import Cancelled, CanopyError, StageFailed, Unavailable
from canopy.protocol.failures import failure_of
from canopy.protocol.messages import Finish, Status, VerifyReply, VerifyRequest
from canopy.protocol.stages import Drafter, TreeBuilder, Verifier
from canopy.tree.forest import split_ragged

# After so many failures in a row a restart does not help.
_MAX_VERIFIER_FAILURES = 3


@dataclass(frozen=True)
class EngineLimits:
    """What the engine admits at once; see config.LimitsConfig and config.CacheConfig."""

    max_running: int
    max_waiting: int
    num_blocks: int
    block_size: int


@dataclass(frozen=True)
class Stages:
    """The pipeline, and how to bring a failed stage back (raises when that fails too)."""

    drafter: Drafter
    tree_builder: TreeBuilder
    verifier: Verifier
    restart: Callable[[str], None] = lambda stage: None


class Engine:
    """Owns every request from `submit` to its last response.

    `submit` may be called from any thread; `step` and `run` belong to one.
    """

    def __init__(
        self, stages: Stages, limits: EngineLimits, decode: Callable[[list[int]], str]
    ) -> None:
        self.metrics = EngineMetrics(free_blocks=limits.num_blocks)
        self._stages = stages
        self._limits = limits
        self._decode = decode
        self._speculator = Speculator(
            stages.drafter, stages.tree_builder, stages.restart, self.metrics
        )
        self._verifier_sync = StageSyncState()
        self._verifier_failures = 0
        self._waiting: deque[EngineSequence] = deque()  # preempted ones stand in front
        self._running: list[EngineSequence] = []  # oldest first
        self._wake = threading.Condition()
        self._is_draining = False
        self._is_stopped = False

    # Requests come in

    def submit(self, request: GenerationRequest, sink: Sink) -> None:
        """Queue a request. Raises Unavailable when the queue is full or the engine drains."""
        with self._wake:
            if self._is_draining:
                raise Unavailable("the server is shutting down: send the request elsewhere")
            places = self._limits.max_running - len(self._running) + self._limits.max_waiting
            if len(self._waiting) >= places:
                raise Unavailable(
                    f"{len(self._running)} requests run and {len(self._waiting)} wait already: "
                    "retry later"
                )
            self.metrics.num_requests += 1
            self._waiting.append(EngineSequence(request, sink, self._decode))
            self._wake.notify()

    def drain(self) -> None:
        """Refuse new requests; those accepted go on to their end."""
        with self._wake:
            self._is_draining = True

    def stop(self) -> None:
        """End `run`; what is still running fails with Unavailable."""
        with self._wake:
            self._is_draining = self._is_stopped = True
            self._wake.notify()

    # The loop

    def run(self, after_step: Callable[[], None] = lambda: None) -> None:
        """Serve until `stop`. Every accepted request ends, whatever happens in a step."""
        while not self._is_stopped:
            with self._wake:
                if not self.has_work:
                    self._wake.wait(timeout=1.0)
            try:
                self.step()
                after_step()
            except Exception as error:
                self._fail_all(CanopyError(f"the engine failed: {error!r}"))
        self._fail_all(Unavailable("the server is shutting down"))

    @property
    def has_work(self) -> bool:
        return bool(self._waiting or self._running or self._verifier_sync.has_pending_finishes)

    @property
    def is_idle(self) -> bool:
        """Nothing to do, and more may come."""
        return not (self.has_work or self._is_stopped)

    def step(self) -> None:
        """Serve every running sequence once."""
        with self.metrics.timed("total"):
            self._drop_cancelled_and_expired()
            self._admit()
            if self._running or self._verifier_sync.has_pending_finishes:
                self._serve()
        self.metrics.running_sequences = len(self._running)
        self.metrics.waiting_sequences = len(self._waiting)

    def _serve(self) -> None:
        self.metrics.num_steps += 1
        trees = self._speculator.propose(self._running, len(self._waiting))
        try:
            with self.metrics.timed("verify"):
                reply = self._verify(trees)
        except StageFailed as error:
            self._recover_verifier(error)
            return
        self._verifier_failures = 0
        self._speculator.record_hidden_states(self._running, reply)
        with self.metrics.timed("commit"):
            self._commit(trees, reply)

    def _verify(self, trees: DraftedTrees) -> VerifyReply:
        changes = self._verifier_sync.starts(self._running)
        return self._stages.verifier.verify(VerifyRequest(**changes, **trees.fields(self._running)))

    # Sequences come and go

    def _drop_cancelled_and_expired(self) -> None:
        for sequence in [*self._running, *self._waiting]:
            if sequence.sink.is_cancelled():
                self.metrics.num_cancelled += 1
                self._end(sequence, Cancelled("the client cancelled the request"))
            elif sequence.is_overdue:
                self.metrics.num_cancelled += 1
                self._end(sequence, Cancelled(f"not done within {sequence.request.timeout_s:g} s"))

    def _admit(self) -> None:
        """Move waiting sequences in while the cache has room for them and for one block each.

        A sequence alone is always admitted: it was checked to fit into the whole cache.
        """
        size = self._limits.block_size
        promised = sum(len(s.token_ids) // size + 1 for s in self._running if not s.is_prefilled)
        room = self.metrics.free_blocks - promised
        with self._wake:
            while self._waiting and len(self._running) < self._limits.max_running:
                need = len(self._waiting[0].token_ids) // size + 1
                if self._running and room < need + len(self._running):
                    break
                room -= need
                self.metrics.record_admission(self._waiting[0])
                self._running.append(self._waiting.popleft())

    def _commit(self, trees: DraftedTrees, reply: VerifyReply) -> None:
        self.metrics.free_blocks = int(reply.num_free_blocks[0])
        self.metrics.used_blocks = int(reply.num_used_blocks[0])
        emitted = split_ragged(reply.emitted_token_ids, reply.num_emitted)
        for index, sequence in enumerate(list(self._running)):
            status = Status(int(reply.status[index]))
            if status is Status.DECODED:
                self._decoded(sequence, trees, reply, index, emitted[index].tolist())
            elif status is Status.PREEMPTED:
                self._preempt(sequence)
            elif status is Status.FAILED:
                self.metrics.num_failed += 1
                self._end(sequence, CanopyError(failure_of(reply, index) or "it cannot go on"))
            elif status is Status.UNKNOWN:
                self._verifier_sync.forget(sequence.id)
                sequence.is_prefilled = False

    def _decoded(
        self,
        sequence: EngineSequence,
        trees: DraftedTrees,
        reply: VerifyReply,
        index: int,
        token_ids: list[int],
    ) -> None:
        """A sequence's round: count it, take its tokens up, send what can be shown."""
        num_accepted, num_before = int(reply.num_accepted[index]), sequence.num_emitted
        sequence.counts.num_cached_tokens = int(reply.num_cached_tokens[index])
        sequence.counts.add_round(trees.num_nodes(sequence), num_accepted)
        self.metrics.record_round(trees.tree(sequence), token_ids, num_accepted)
        sequence.is_prefilled = True
        delta = sequence.emit(token_ids, Finish(int(reply.finish[index])))
        kept = token_ids[: sequence.num_emitted - num_before]
        self.metrics.record_emitted(sequence, len(kept))
        if sequence.trace is not None:
            traced = trees.traced_tree(sequence, sequence.token_ids[-len(kept) - 1])
            step = TracedStep(self.metrics.measured_verify_ms, len(reply.status))
            sequence.trace.add(traced, kept, num_accepted, step)
        if delta is not None:
            self._send(sequence, delta)

    def _send(self, sequence: EngineSequence, delta: Delta) -> None:
        if delta.is_last:
            self._drop(sequence)
            self.metrics.record_finished(sequence)
        if sequence.trace is not None:
            delta = replace(delta, rounds=sequence.trace.take())
        sequence.sink.send(delta)

    def _preempt(self, sequence: EngineSequence) -> None:
        """Back to the front of the queue; its tokens are kept and computed again later."""
        self.metrics.num_preempted += 1
        sequence.counts.num_preemptions += 1
        sequence.is_prefilled = False
        self._verifier_sync.forget(sequence.id)
        self._running.remove(sequence)
        with self._wake:
            self._waiting.appendleft(sequence)

    def _end(self, sequence: EngineSequence, error: CanopyError) -> None:
        self._drop(sequence)
        sequence.sink.fail(error)

    def _drop(self, sequence: EngineSequence) -> None:
        self._verifier_sync.finish(sequence.id)
        self._speculator.finish(sequence.id)
        with self._wake:
            if sequence in self._running:
                self._running.remove(sequence)
            else:
                self._waiting.remove(sequence)

    # Failure

    def _recover_verifier(self, error: StageFailed) -> None:
        """Restart the verifier and recompute; nobody's stream breaks unless it keeps failing."""
        self.metrics.record_failure(error.stage)
        self._verifier_sync.forget_all()
        for sequence in self._running:
            sequence.is_prefilled = False
        self._verifier_failures += 1
        if self._verifier_failures >= _MAX_VERIFIER_FAILURES:
            self._verifier_failures = 0
            self._fail_all(error)
        self._stages.restart(error.stage)

    def _fail_all(self, error: CanopyError) -> None:
        for sequence in [*self._running, *self._waiting]:
            self.metrics.num_failed += 1
            self._end(sequence, error)
