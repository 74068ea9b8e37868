"""A pipeline small enough to reason about: integer arithmetic stands for the target model."""

from dataclasses import dataclass, field

import numpy as np

from canopy.engine.loop import Engine
from canopy.engine.output import Delta
from canopy.engine.request import GenerationRequest
from canopy.engine.request_queue import EngineLimits
from canopy.engine.stages import Stages
from canopy.errors import CanopyError, StageFailed
from canopy.protocol.messages import (
    BuildReply,
    BuildRequest,
    DraftReply,
    DraftRequest,
    Finish,
    Status,
    VerifyReply,
    VerifyRequest,
)
from canopy.protocol.proposals import pack_proposals
from canopy.protocol.sequence_updates import started_sequences
from canopy.sampling import PolicyName, SamplingParams
from canopy.tree import DraftTree, Forest, Proposal, ProposalRow
from canopy.tree.forest import split_ragged

VOCAB = 61
BLOCK = 4


def next_token(tokens: list[int]) -> int:
    """The toy target: its greedy continuation depends on all tokens."""
    return (sum((i + 1) * (t + 1) for i, t in enumerate(tokens)) * 7 + 3) % VOCAB


def continuation(prompt: list[int], count: int) -> list[int]:
    tokens = list(prompt)
    for _ in range(count):
        tokens.append(next_token(tokens))
    return tokens[len(prompt) :]


def decode(token_ids: list[int]) -> str:
    """Token i is the character 'A' + i."""
    return "".join(chr(65 + token_id) for token_id in token_ids)


class ToyDrafter:
    """Proposes the right continuation for two tokens, then a wrong one."""

    def __init__(self) -> None:
        self.known: dict[int, list[int]] = {}
        self.fail_next = 0
        self.least_survivals: list[list[float]] = []  # of every request

    def draft(self, request: DraftRequest) -> DraftReply:
        if self.fail_next:
            self.fail_next -= 1
            raise StageFailed("draft", "toy failure")
        self.least_survivals.append(request.least_survival.tolist())
        for sequence_id in request.finished_ids:
            self.known.pop(int(sequence_id), None)
        for started in started_sequences(request).sequences:
            self.known[started.sequence_id] = started.token_ids.tolist()
        grown = split_ragged(request.updated_token_ids, request.updated_lengths)
        for sequence_id, tokens in zip(request.updated_ids, grown, strict=True):
            self.known[int(sequence_id)] += tokens.tolist()
        depths = zip(request.sequence_ids, request.max_depths, strict=True)
        return pack_proposals([self._propose(int(i), int(d)) for i, d in depths])

    def _propose(self, sequence_id: int, max_depth: int) -> Proposal:
        tokens = self.known[sequence_id]
        drafted = [*continuation(tokens, 2), 0][:max_depth]
        size = len(drafted) + 1
        tree = DraftTree(
            np.array([tokens[-1], *drafted], np.int32), np.arange(-1, size - 1, dtype=np.int32)
        )
        zeros = np.zeros(size, np.float32)
        return Proposal(tree, zeros, zeros, [ProposalRow.empty()] * size)


class ToyBuilder:
    """Takes the whole proposal up to the budget."""

    def __init__(self) -> None:
        self.draft_next = 1
        self.log_odds_correction = 0.0
        self.least_survival = 0.125
        self.num_asked = 0

    def build(self, request: BuildRequest) -> BuildReply:
        self.num_asked += 1
        sizes = np.minimum(request.num_nodes, request.node_budgets)
        selected = [np.arange(1, n + 1, dtype=np.int32) for n in sizes]
        return BuildReply(
            sizes.astype(np.int32),
            np.concatenate([np.zeros(0, np.int32), *selected]),
            np.array([self.draft_next], np.int32),
            price=np.array([0.5], np.float32),
            log_odds_correction=np.array([self.log_odds_correction], np.float32),
            least_survival=np.array([self.least_survival], np.float32),
            predicted_ms=np.array([1.0], np.float32),
            load_state=np.array([0], np.int32),
            price_ttl_steps=np.ones(1, np.int32),
        )


class ToyVerifier:
    """Greedy acceptance over `next_token`, with a block count and injectable trouble."""

    def __init__(self, num_blocks: int = 64) -> None:
        self.known: dict[int, list[int]] = {}
        self.params: dict[int, SamplingParams] = {}
        self.num_emitted: dict[int, int] = {}
        self.num_blocks = num_blocks
        self.fail_next = 0
        self.preempt_next: set[int] = set()
        self.spoil_next: set[int] = set()
        self.forget_next: set[int] = set()

    @property
    def num_used(self) -> int:
        return sum(len(tokens) // BLOCK + 1 for tokens in self.known.values())

    def verify(self, request: VerifyRequest) -> VerifyReply:
        for sequence_id in request.finished_ids:
            self.known.pop(int(sequence_id), None)
        for started in started_sequences(request).sequences:
            self.known[started.sequence_id] = started.token_ids.tolist()
            self.params[started.sequence_id] = started.params
            self.num_emitted[started.sequence_id] = started.num_emitted
        if self.fail_next:
            self.fail_next -= 1
            raise StageFailed("verifier", "toy failure")
        trees = Forest(request.num_nodes, request.token_ids, request.parents).unpack()
        rows = [self._step(int(i), t) for i, t in zip(request.sequence_ids, trees, strict=True)]
        emitted = [row[2] for row in rows]
        num_emitted = np.array([len(tokens) for tokens in emitted], np.int32)
        return VerifyReply(
            status=np.array([row[0] for row in rows], np.int32),
            finish=np.array([row[1] for row in rows], np.int32),
            num_emitted=num_emitted,
            emitted_token_ids=np.array([t for tokens in emitted for t in tokens], np.int32),
            num_accepted=np.maximum(num_emitted - 1, 0),
            num_cached_tokens=np.zeros_like(num_emitted),
            num_free_blocks=np.array([self.num_blocks - self.num_used], np.int32),
            num_used_blocks=np.array([self.num_used], np.int32),
        )

    def _step(self, sequence_id: int, tree: DraftTree) -> tuple[Status, Finish, list[int]]:
        if sequence_id in self.forget_next:
            self.forget_next.remove(sequence_id)
            self.known.pop(sequence_id, None)
        if sequence_id not in self.known:
            return Status.UNKNOWN, Finish.NONE, []
        if sequence_id in self.preempt_next:
            self.preempt_next.remove(sequence_id)
            del self.known[sequence_id]
            return Status.PREEMPTED, Finish.NONE, []
        if sequence_id in self.spoil_next:
            return Status.FAILED, Finish.NONE, []
        return self._decode(sequence_id, tree)

    def _decode(self, sequence_id: int, tree: DraftTree) -> tuple[Status, Finish, list[int]]:
        tokens, params = self.known[sequence_id], self.params[sequence_id]
        assert tree.token_ids[0] == tokens[-1], "the anchor is the last known token"
        drafted, emitted, finish = tree.token_ids[1:].tolist(), [], Finish.NONE
        while finish is Finish.NONE and len(emitted) <= len(drafted):
            token = next_token(tokens)
            tokens.append(token)
            emitted.append(token)
            self.num_emitted[sequence_id] += 1
            if token in params.stop_token_ids:
                finish = Finish.STOP
            elif self.num_emitted[sequence_id] == params.max_tokens:
                finish = Finish.LENGTH
            if len(emitted) > len(drafted) or drafted[len(emitted) - 1] != token:
                break
        return Status.DECODED, finish, emitted


@dataclass
class CollectingSink:
    """Keeps what it is sent; checks that the end comes once."""

    deltas: list[Delta] = field(default_factory=list)
    error: CanopyError | None = None
    cancelled: bool = False

    def send(self, delta: Delta) -> None:
        assert not self.is_ended, "a response after the last one"
        self.deltas.append(delta)

    def fail(self, error: CanopyError) -> None:
        assert not self.is_ended, "a second end"
        self.error = error

    def is_cancelled(self) -> bool:
        return self.cancelled

    @property
    def is_ended(self) -> bool:
        return self.error is not None or bool(self.deltas and self.deltas[-1].is_last)

    @property
    def text(self) -> str:
        return "".join(delta.text for delta in self.deltas)

    @property
    def finish_reason(self) -> str | None:
        return self.deltas[-1].finish_reason if self.deltas else None

    @property
    def num_tokens(self) -> int:
        return sum(delta.num_tokens for delta in self.deltas)


class Pipeline:
    """An engine over the toy stages."""

    def __init__(self, max_running: int = 8, max_waiting: int = 100, num_blocks: int = 64) -> None:
        self.drafter, self.builder = ToyDrafter(), ToyBuilder()
        self.verifier = ToyVerifier(num_blocks)
        self.restarted: list[str] = []
        stages = Stages(self.drafter, self.builder, self.verifier, self.restarted.append)
        limits = EngineLimits(max_running, max_waiting, num_blocks, BLOCK)
        self.engine = Engine(stages, limits, decode)

    def submit(self, prompt: list[int], **options: object) -> CollectingSink:
        sink = CollectingSink()
        self.engine.submit(make_request(prompt, **options), sink)
        return sink

    def run(self, max_steps: int = 500) -> None:
        """Step until nothing is left; then no stage holds anything."""
        for _ in range(max_steps):
            if not self.engine.has_work:
                break
            self.engine.step()
        assert not self.engine.has_work
        assert self.verifier.known == {}
        assert self.engine.metrics.free_blocks == self.verifier.num_blocks
        assert self.engine.metrics.running_sequences == self.engine.metrics.waiting_sequences == 0


def make_request(prompt: list[int], **options: object) -> GenerationRequest:
    """Request fields and sampling fields in one; speculation is on unless policy = OFF."""
    own = {k: v for k, v in options.items() if k in GenerationRequest.__dataclass_fields__}
    params = {"policy": PolicyName.CHAIN, "node_budget": 4, "temperature": 0.0, "max_tokens": 12}
    params |= {k: v for k, v in options.items() if k not in own}
    return GenerationRequest(
        prompt_text=decode(prompt),
        prompt_token_ids=np.array(prompt, np.int32),
        params=SamplingParams(**params),
        **own,
    )
