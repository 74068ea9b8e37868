"""Rounds over text that the target wrote once: acceptance without a forward for every round.

Where the target alone decides every token (greedy, coupled, target_only) and its rows do not depend
on the tree beside them (the int8 decoder), the text of a request is the same however it was
drafted. So it is written once, one token a round, and each way to draft is then walked over it: the
engine, the draft stage and the tree builder are the real ones, and the verifier accepts what equals
the text. Times mean nothing in a replay, and policies that read them (priced) cannot be replayed.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from bench.acceptance.replay_texts import Texts, TextStore, Written, text_key
from bench.harness.local_engine import LocalEngine
from canopy.acceptance.result import walk
from canopy.config import Deployment
from canopy.engine.request import GenerationRequest
from canopy.protocol.hidden_states import HiddenStates, reply_fields
from canopy.protocol.messages import Finish, Status, VerifyReply, VerifyRequest
from canopy.protocol.sequence_updates import started_sequences
from canopy.protocol.stages import Verifier
from canopy.tree import DraftTree, Forest
from canopy.tree.forest import split_ragged
from canopy.verifier.construction import make_verifier

REPLAYED_MODES = ("greedy", "coupled", "target_only")
NOT_REPLAYED_POLICIES = ("priced",)
_MANY_BLOCKS = 1 << 20


class WritingVerifier:
    """`stages.protocol.Verifier` that keeps what another one writes, one token a round."""

    def __init__(self, verifier: Verifier, texts: Texts) -> None:
        """texts: where the texts are left."""
        self._texts = texts
        self._verifier = verifier
        self._running: dict[int, Written] = {}

    def verify(self, request: VerifyRequest) -> VerifyReply:
        """Pass on, and take notes."""
        for new in started_sequences(request).sequences:
            written = Written(new.token_ids.tolist())
            self._texts[text_key(new.token_ids, new.params)] = self._running[new.sequence_id] = (
                written
            )
        reply = self._verifier.verify(request)
        emitted = split_ragged(reply.emitted_token_ids, reply.num_emitted)
        states = HiddenStateParts(reply)
        for index, sequence_id in enumerate(request.sequence_ids.tolist()):
            written = self._running[sequence_id]
            written.token_ids += emitted[index].tolist()
            written.finish = Finish(int(reply.finish[index]))
            written.parts += states.of(index)
        return reply


class HiddenStateParts:
    """The features of a reply by sequence."""

    def __init__(self, reply: VerifyReply) -> None:
        lengths, self._starts = reply.hidden_state_lengths, reply.hidden_state_starts
        rows = (
            reply.hidden_states.reshape(int(lengths.sum()), -1)
            if len(lengths)
            else reply.hidden_states
        )
        self._parts = split_ragged(rows, lengths)

    def of(self, index: int) -> list[HiddenStates]:
        """One part, or none."""
        if not self._parts or not len(self._parts[index]):
            return []
        return [HiddenStates(int(self._starts[index]), self._parts[index].copy())]


@dataclass(frozen=True)
class _Step:
    """What a verify reply tells of one sequence."""

    status: Status
    emitted: list[int] = field(default_factory=list)
    num_accepted: int = 0
    finish: Finish = Finish.NONE
    hidden_states: HiddenStates | None = None


@dataclass
class _Place:
    """A sequence in a replay: tokens known and positions computed so far."""

    text: Written
    num_known: int
    num_computed: int = 0
    num_told: int = 0  # positions whose features went out

    def take_prompt(self, limit: int) -> int:
        """Compute what is missing before the anchor and the anchor, `limit` tokens at most; how
        many of a prompt they were."""
        missing = self.num_known - self.num_computed
        taken = missing if missing == 1 else min(missing, limit)
        self.num_computed += taken
        return taken if missing > 1 else 0

    def advance(self, tree: DraftTree) -> _Step:
        """A round, where the anchor is computed."""
        if self.num_computed < self.num_known:
            return _Step(Status.PREFILLING, hidden_states=self._new_hidden_states())
        truth, depths = self.text.token_ids, tree.depths.tolist()

        def decide(node: int) -> int:
            position = self.num_known + depths[node]
            return truth[position] if position < len(truth) else -1

        verdict = walk(tree, decide)
        emitted = verdict.token_ids(tree)[: len(truth) - self.num_known]
        self.num_known += len(emitted)
        self.num_computed = self.num_known - 1
        finish = self.text.finish if self.num_known == len(truth) else Finish.NONE
        num_accepted = min(len(verdict.path), len(emitted))
        return _Step(Status.DECODED, emitted, num_accepted, finish, self._new_hidden_states())

    def _new_hidden_states(self) -> HiddenStates | None:
        first, self.num_told = self.num_told, self.num_computed
        return self.text.between(first, self.num_told)


class ReplayVerifier:
    """`stages.protocol.Verifier` that knows every text beforehand."""

    def __init__(self, texts: Texts, max_step_tokens: int) -> None:
        """max_step_tokens: prompt tokens that a step takes up, as in `verifier.scheduler`."""
        self._texts = texts
        self._max_step_tokens = max_step_tokens
        self._places: dict[int, _Place] = {}

    def verify(self, request: VerifyRequest) -> VerifyReply:
        """Walk every tree over its text. Raises KeyError for a request that was not written."""
        for sequence_id in request.finished_ids.tolist():
            self._places.pop(sequence_id, None)
        for new in started_sequences(request).sequences:
            text = self._texts[text_key(new.token_ids, new.params)]
            self._places[new.sequence_id] = _Place(text, len(new.token_ids))
        places = [self._places[sequence_id] for sequence_id in request.sequence_ids.tolist()]
        trees = Forest(request.num_nodes, request.token_ids, request.parents).unpack()
        left = min([self._max_step_tokens, *request.max_prompt_rows.tolist()])
        steps = list[_Step]()
        for place, tree in zip(places, trees, strict=True):
            left -= place.take_prompt(left)
            steps.append(place.advance(tree))
        return _reply(steps)


class TextWriter:
    """Has the target write the texts of requests, each once, with the features that any of the
    deployments asks for (which have to read the same)."""

    def __init__(self, deployments: Sequence[Deployment], file: Path | None = None) -> None:
        """file: where texts are kept from one run to the next; none: nowhere."""
        readers = [d for d in deployments if d.drafter.reads_hidden_states]
        chosen = (readers or list(deployments))[0]
        # A reused prefix would bring no features.
        self._deployment = replace(chosen, cache=replace(chosen.cache, prefix_reuse=False))
        self._engine: LocalEngine | None = None
        self._store = TextStore(self._deployment, file) if file else None
        self._texts: Texts = self._store.load() if self._store else {}

    @property
    def texts(self) -> Texts:
        """What is written by now."""
        return self._texts

    def write(self, requests: Sequence[GenerationRequest]) -> None:
        """Write what is not written yet."""
        missing = [
            replace(request, params=request.params.without_speculation())
            for request in requests
            if text_key(request.prompt_token_ids, request.params) not in self._texts
        ]
        if missing:
            self._open().run(missing)
            if self._store:
                self._store.save(self._texts)

    def _open(self) -> LocalEngine:
        if self._engine is None:
            verifier = WritingVerifier(make_verifier(self._deployment), self._texts)
            self._engine = LocalEngine(self._deployment, verifier)
        return self._engine

    def replay(self) -> ReplayVerifier:
        """Knows what is written by the time it is asked."""
        return ReplayVerifier(self._texts, self._deployment.limits.max_step_tokens)


def _reply(steps: Sequence[_Step]) -> VerifyReply:
    return VerifyReply(
        status=np.array([step.status for step in steps], np.int32),
        finish=np.array([step.finish for step in steps], np.int32),
        num_emitted=np.array([len(step.emitted) for step in steps], np.int32),
        emitted_token_ids=np.array([t for step in steps for t in step.emitted], np.int32),
        num_accepted=np.array([step.num_accepted for step in steps], np.int32),
        num_cached_tokens=np.zeros(len(steps), np.int32),
        num_free_blocks=np.array([_MANY_BLOCKS], np.int32),
        num_used_blocks=np.zeros(1, np.int32),
        **reply_fields([step.hidden_states for step in steps]),
    )
