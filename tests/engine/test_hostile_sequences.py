"""Whatever one sequence brings, the answers beside it stay as they are and no stage fails.

One field of one sequence is spoiled, in the messages that the stages get or in the request itself.
"""

import json
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from summing_decoder import VOCAB_SIZE, SummingDecoder
from toys import CollectingSink

from canopy.acceptance import draft_noise, draw_children, slot_log_probs
from canopy.config import CacheConfig, Deployment
from canopy.drafter.lookup.source import LookupSource
from canopy.drafter.stage import DrafterStage
from canopy.engine.loop import Engine
from canopy.engine.stages import Stages
from canopy.errors import InvalidRequest
from canopy.frontend.client_request import ClientRequest
from canopy.frontend.limits import engine_limits
from canopy.frontend.request_parser import RequestParser
from canopy.frontend.sampling_params import ModelLimits
from canopy.protocol.messages import BuildRequest, DraftRequest, VerifyRequest
from canopy.tree import DraftTree, Proposal, ProposalRow
from canopy.tree.forest import offsets_of
from canopy.tree_builder.stage import PolicyTreeBuilder
from canopy.verifier.stage import TargetVerifier

PROMPTS = ("abcabcabcabc", "thecatsatonthematthecatsat", "bcdbcdbcdb")
STOP = VOCAB_SIZE - 1
VICTIM = 1  # the prompt whose sequence is spoiled
MODES = ("greedy", "coupled", "rejection", "traversal", "target_only")
# Trees of these depend on their own sequence alone, so drawn texts can be compared.
POLICIES = ("off", "chain", "uniform", "threshold", "topn", "entropy", "static_optimal")
SHARED_POLICIES = ("survival", "priced")
HOSTILE_NUMBERS = (float("nan"), float("inf"), -float("inf"), -1.0, 1e30, 0.0, 1e-46, 7.0)
HOSTILE_INTEGERS = (-1, -(2**31), 2**31 - 1, 10**6, VOCAB_SIZE, 0)

# Fields of one sequence: in which array of the message, and whose lengths divide it.
STARTED = {
    **dict.fromkeys(("max_tokens", "min_tokens", "num_emitted", "seeds", "node_budgets")),
    **dict.fromkeys(("temperatures", "top_ks", "top_ps", "min_ps", "acceptances", "policies")),
    "token_ids": "lengths",
    "stop_token_ids": "num_stops",
}
BY_NODE = ("token_ids", "parents", "log_probs", "entropies")
FIELDS = [
    *((kind, f"started_{name}") for kind in (DraftRequest, VerifyRequest) for name in STARTED),
    (DraftRequest, "updated_token_ids"),
    (DraftRequest, "max_depths"),
    *((BuildRequest, name) for name in BY_NODE[1:]),
    *((BuildRequest, name) for name in ("policies", "node_budgets", "acceptances")),
    *((VerifyRequest, name) for name in BY_NODE[:2]),
    *((VerifyRequest, name) for name in ("row_token_ids", "row_log_probs")),
]


@dataclass
class Spoiler:
    """Writes a value over one field of the victim in every message of a kind."""

    kind: type
    name: str
    value: float
    victim: int = 0  # sequence id

    def __call__(self, message: Any) -> Any:
        values = getattr(message, self.name, np.zeros(0))
        own = self._own(message) if type(message) is self.kind else slice(0)
        if len(values[own]) == 0:
            return message
        spoiled = values.copy()
        with np.errstate(all="ignore"):
            spoiled[own][-1:] = np.array([self.value]).astype(values.dtype)
        return replace(message, **{self.name: spoiled})

    def _own(self, message: Any) -> slice:
        """Which entries of the array are the victim's."""
        if self.name.startswith("started_"):
            lengths = STARTED[self.name.removeprefix("started_")]
            return self._part(
                message.started_ids, lengths and getattr(message, f"started_{lengths}")
            )
        if self.name.startswith("updated_"):
            return self._part(message.updated_ids, message.updated_lengths)
        ids = getattr(message, "sequence_ids", self.order)
        if self.name in BY_NODE:
            return self._part(ids, message.num_nodes + 1)
        if self.name.startswith("row_"):
            rows, nodes = offsets_of(message.row_lengths), self._part(ids, message.num_nodes + 1)
            return slice(rows[nodes.start or 0], rows[nodes.stop])
        return self._part(ids, None)

    order = np.zeros(0, np.int64)  # of the sequences that the drafter was asked for last

    def _part(self, ids: np.ndarray, lengths: np.ndarray | None) -> slice:
        (places,) = np.nonzero(ids == self.victim)
        if not len(places):
            return slice(0)
        offsets = offsets_of(np.ones(len(ids), np.int64) if lengths is None else lengths)
        return slice(offsets[places[0]], offsets[places[0] + 1])


class Letters:
    """A tokenizer of one letter a token."""

    longest_token_bytes = None

    def encode(self, text):
        return [ord(letter) - ord("a") for letter in text]

    def decode(self, token_ids):
        return "".join(chr(ord("a") + token_id) for token_id in token_ids)

    def token(self, token_id):
        return self.decode([token_id])


class DrawingSource(LookupSource):
    """Lookup, and for modes that want drawn children two levels of them, from rows."""

    def propose(self, tasks):
        drawn = [task.sequence.acceptance.draws_children for task in tasks]
        return [
            self._drawn(task) if is_drawn else super(DrawingSource, self).propose([task])[0]
            for task, is_drawn in zip(tasks, drawn, strict=True)
        ]

    def _drawn(self, task):
        sequence = task.sequence
        tokens, parents, logs, rows = [sequence.token_ids[-1]], [-1], [0.0], []
        for node in range(3):
            rng = np.random.default_rng(sum(sequence.token_ids) + 97 * tokens[node])
            ids = np.sort(rng.permutation(VOCAB_SIZE)[:8]).astype(np.int32)
            rows.append(ProposalRow(ids, np.log(rng.dirichlet(np.ones(8))).astype(np.float32)))
            noise = draft_noise(sequence.params.seed, len(sequence.token_ids), node)
            tokens += draw_children(rows[node], 2, noise).tolist()
            parents += [node, node]
            logs += slot_log_probs(rows[node], 2).tolist()
        rows += [ProposalRow.empty()] * (len(tokens) - len(rows))
        tree = DraftTree(np.array(tokens, np.int32), np.array(parents, np.int32))
        return Proposal(tree, np.array(logs, np.float32), np.zeros(len(logs), np.float32), rows)


class Pipeline:
    """The engine over the real stages and a target without rounding; messages can be spoiled."""

    def __init__(self) -> None:
        deployment = Deployment(cache=CacheConfig(num_tokens=256))
        source = DrawingSource(1, 4)
        self._drafter = DrafterStage(source, deployment.drafter, deployment.tree)
        self._builder = PolicyTreeBuilder(deployment.tree)
        self._verifier = TargetVerifier(SummingDecoder(), deployment.cache, 64)
        tokenizer = Letters()
        self.engine = Engine(Stages(self, self, self), engine_limits(deployment), tokenizer.decode)
        limits = ModelLimits(512, VOCAB_SIZE, (STOP,))
        self._parser = RequestParser(deployment, limits, tokenizer)
        self._spoil: Spoiler | None = None

    def draft(self, request):
        if self._spoil:
            self._spoil.order = request.sequence_ids
        return self._drafter.draft(self._spoiled(request))

    def build(self, request):
        return self._builder.build(self._spoiled(request))

    def verify(self, request):
        return self._verifier.verify(self._spoiled(request))

    def _spoiled(self, request):
        return self._spoil(request) if self._spoil else request

    def serve(self, mode, policy, spoil=None, **own):
        """The sinks of all prompts, served together; `own` parameters are the victim's."""
        requests = []
        for seed, prompt in enumerate(PROMPTS):
            given = {"seed": seed, "max_tokens": 14, "ignore_eos": True, "speculation": policy}
            given |= {"temperature": 0} if mode == "greedy" else {"acceptance": mode}
            given |= {"node_budget": 8} | (own if seed == VICTIM else {})
            parameters = json.dumps(given).encode()
            client = ClientRequest(prompt.encode(), stream=True, sampling_parameters=parameters)
            requests.append(self._parser.parse(client))
        sinks = [CollectingSink() for _ in requests]
        for index, (request, sink) in enumerate(zip(requests, sinks, strict=True)):
            self.engine.submit(request, sink)
            if spoil and index == VICTIM:
                spoil.victim = self.engine._queue.sequences[-1].id
        self._spoil = spoil
        for _ in range(600):
            if not self.engine.has_work:
                break
            self.engine.step()
        self.check(sinks)
        return sinks

    def check(self, sinks) -> None:
        """Every request has ended, no stage has failed, and every block is free."""
        assert all(sink.is_ended for sink in sinks)
        assert self.engine.metrics.num_stage_failures == {}
        assert self._verifier.blocks.num_used == 0
        self._verifier.blocks.check_integrity()


@pytest.fixture(scope="module")
def pipeline() -> Pipeline:
    return Pipeline()


@pytest.fixture(scope="module")
def expected(pipeline):
    """The neighbours' texts with nothing spoiled, by mode and policy."""
    known = {}

    def texts(mode, policy):
        # What the target alone decides is the same under every policy.
        key = (mode, policy if mode in ("rejection", "traversal") else "off")
        if key not in known:
            known[key] = neighbours(pipeline.serve(*key))
        return known[key]

    return texts


def neighbours(sinks):
    return [(sink.error, sink.text) for i, sink in enumerate(sinks) if i != VICTIM]


@st.composite
def cases(draw):
    """Mode, policy and what is spoiled."""
    kind, name = draw(st.sampled_from(FIELDS))
    is_number = np.issubdtype(getattr(kind(), name).dtype, np.floating)
    value = draw(st.sampled_from(HOSTILE_NUMBERS if is_number else HOSTILE_INTEGERS))
    mode = draw(st.sampled_from(MODES))
    shared = () if mode in ("rejection", "traversal") else SHARED_POLICIES
    return mode, draw(st.sampled_from(POLICIES + shared)), kind, name, value


@settings(max_examples=60)
@given(cases())
def test_a_spoiled_field_of_a_message_is_felt_by_its_sequence_alone(pipeline, expected, case):
    mode, policy, kind, name, value = case
    sinks = pipeline.serve(mode, policy, Spoiler(kind, name, value))
    assert neighbours(sinks) == expected(mode, policy)


@pytest.mark.parametrize(("kind", "name"), FIELDS)
def test_every_field_can_be_spoiled(pipeline, expected, kind, name):
    """Each field once, with the value that is the furthest from any sense."""
    is_number = np.issubdtype(getattr(kind(), name).dtype, np.floating)
    value = float("nan") if is_number else -(2**31)
    mode = "rejection" if name.startswith("row_") else "coupled"
    sinks = pipeline.serve(mode, "topn", Spoiler(kind, name, value))
    assert neighbours(sinks) == expected(mode, "topn")


HOSTILE_PARAMETERS = {
    "temperature": (1e-46, 1e-38, 1e-5, 100, 100.1, "nan", "1e999", -0.0),
    "top_p": (1e-46, 1e-39, 2e-38, 1 - 1e-12, 1.0000001, "inf"),
    "top_k": (1, 2**31 - 1, 2**31, -1, 24),
    "min_p": (1e-46, 1.0, 1.1, 0.999999999),
    "seed": (0, 2**64 - 1, 2**64, -1, -2),
    "max_tokens": (1, 2**31 - 1, 2**31, 10**30),
    "min_tokens": (14, 13, 15, 2**31 - 1),
    "stop_token_ids": ([23], [24], [-1], [2**31], [*range(24)], [0.5]),
    "stop": ("\ud800", "a" * 10**4, ["", "a"], ["a"] * 33),
    "node_budget": (0, 1, 256, 257, -1),
}


@pytest.mark.parametrize(
    ("mode", "name", "value"),
    [
        (MODES[index % len(MODES)], name, value)
        for name, values in HOSTILE_PARAMETERS.items()
        for index, value in enumerate(values)
    ],
)
def test_what_the_entry_lets_through_is_served(pipeline, expected, mode, name, value):
    try:
        sinks = pipeline.serve(mode, "topn", **{name: value})
    except InvalidRequest:
        return
    assert neighbours(sinks) == expected(mode, "topn")
    assert sinks[VICTIM].error is None
