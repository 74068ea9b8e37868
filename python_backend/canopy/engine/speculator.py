"""The speculative half of a step: which tree every running sequence brings to the verifier.

Speculation may fail without a request noticing: a dead drafter or builder means plain decoding
until the stage is back.
"""

import logging
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from canopy.engine.draft_history import DraftHistories, StepTimes, estimated_asking_tokens
from canopy.engine.draft_schedule import DraftSchedule
from canopy.engine.metrics import EngineMetrics
from canopy.engine.prompt_budget import PromptBudget
from canopy.engine.request import EngineSequence
from canopy.engine.stage_health import StageHealth
from canopy.engine.stage_sync import StageSyncState
from canopy.engine.stages import Stages
from canopy.engine.step_stats import StepStats
from canopy.engine.trace import TracedTree, path_survival
from canopy.errors import ServerStopping, StageFailed
from canopy.protocol.hidden_states import HiddenStateBuffer
from canopy.protocol.messages import BuildReply, BuildRequest, DraftReply, DraftRequest, VerifyReply
from canopy.protocol.proposals import pack_rows, unpack_proposals
from canopy.sampling import PolicyName
from canopy.tree import DraftTree, Forest, Proposal, ProposalRow
from canopy.tree.forest import split_ragged
from canopy.tree.survival import correct_log_odds

logger = logging.getLogger(__name__)

_DraftedTree = tuple[DraftTree, list[ProposalRow]]


@dataclass(frozen=True)
class DraftedTrees:
    """The drafted trees of a step by sequence id; every other sequence brings its anchor."""

    trees: dict[int, _DraftedTree] = field(default_factory=dict)
    traced: dict[int, TracedTree] = field(default_factory=dict)  # of those that ask for a trace
    asking_ms: float = 0.0  # what drafting and selecting took, for one sequence

    def tree(self, sequence: EngineSequence) -> DraftTree | None:
        """The drafted tree of a sequence; None when it brings its anchor alone."""
        drafted = self.trees.get(sequence.id)
        return drafted[0] if drafted else None

    def num_nodes(self, sequence: EngineSequence) -> int:
        """Drafted nodes of a sequence this step."""
        tree = self.tree(sequence)
        return tree.num_nodes if tree else 0

    def traced_tree(self, sequence: EngineSequence, anchor: int) -> TracedTree:
        """For the trace of a sequence that stood at the token `anchor`."""
        return self.traced.get(sequence.id) or TracedTree.of_anchor(anchor)

    def fields(self, sequences: Sequence[EngineSequence]) -> dict[str, Any]:
        """The tree fields of VerifyRequest, in the order of `sequences`."""
        pairs = [self.trees.get(s.id) or _anchor_alone(s) for s in sequences]
        forest = Forest.pack([tree for tree, _ in pairs])
        return {
            "sequence_ids": np.array([s.id for s in sequences], np.int64),
            "num_nodes": forest.num_nodes,
            "token_ids": forest.token_ids,
            "parents": forest.parents,
            **pack_rows([row for _, rows in pairs for row in rows]),
        }


def _is_priced(sequence: EngineSequence) -> bool:
    return sequence.request.params.policy is PolicyName.PRICED


def _anchor_alone(sequence: EngineSequence) -> _DraftedTree:
    return DraftTree.of_anchor(sequence.token_ids[-1]), [ProposalRow.empty()]


class Speculator:
    """Asks the drafter and the tree builder, and keeps what the drafter has been told."""

    def __init__(
        self,
        stages: Stages,
        health: StageHealth,
        metrics: EngineMetrics,
        prompt_budget: PromptBudget,
    ) -> None:
        self._drafter = stages.drafter
        self._tree_builder = stages.tree_builder
        self._prompt_budget = prompt_budget
        self._health = health
        self._metrics = metrics
        self._sync = StageSyncState()
        self._hidden_states = HiddenStateBuffer()
        self._step_stats = StepStats(metrics)
        self._schedule = DraftSchedule()
        self._histories = DraftHistories()
        self._times = StepTimes()
        # Sequences running and asked for; none where other trees than priced ones were verified.
        self._last_step: tuple[int, int] | None = None
        self._least_survival = np.zeros(0, np.float32)  # as the last BuildReply has it

    def finish(self, sequence_id: int) -> None:
        """The drafter is to drop a sequence."""
        self._sync.finish(sequence_id)
        self._hidden_states.drop(sequence_id)
        self._histories.finish(sequence_id)

    def record_round(
        self, sequence: EngineSequence, trees: DraftedTrees, num_accepted: int, num_running: int
    ) -> None:
        """What a round of a step of so many sequences brought, if it was drafted for."""
        if sequence.id not in trees.trees:
            return
        token_ms = self._metrics.measured_verify_ms / num_running
        num_nodes, price = trees.num_nodes(sequence), self._metrics.node_price
        estimated = estimated_asking_tokens(num_nodes, price, trees.asking_ms, token_ms)
        cost = self._times.asking_tokens(num_running, estimated)
        self._histories.add(sequence.id, num_accepted - cost)

    def record_hidden_states(self, running: Sequence[EngineSequence], reply: VerifyReply) -> None:
        """Keep for the drafter what a verify reply tells about the sequences it was asked for."""
        self._hidden_states.note([s.id for s in running], reply)
        for sequence in running:
            if not sequence.speculates:
                self._hidden_states.drop(sequence.id)

    def note_failure(self, stage: str) -> None:
        """A stage of speculation failed; until it is back all decoding is plain."""
        self._sync.forget_all()
        self._health.reload(stage)

    def propose(self, running: Sequence[EngineSequence], num_waiting: int) -> DraftedTrees:
        """Trees for this step; none at all when nothing is worth drafting.

        Raises ServerStopping.
        """
        step_ms = self._step_stats.begin(len(running), sum(s.is_prefilled for s in running))
        if step_ms is not None and self._last_step:
            self._times.add(step_ms, *self._last_step)
        self._last_step = (len(running), 0)
        self._metrics.node_budget = 0.0
        sequences = [s for s in running if s.wants_draft]
        if any(map(self._health.is_loading, ("draft", "tree_builder"))):
            return DraftedTrees()
        is_skipped = self._schedule.skips(len(running), len(sequences))
        sequences = [s for s in sequences if self._asks(s, is_skipped)]
        if not sequences and (is_skipped or not self._sync.has_pending_finishes):
            return DraftedTrees()
        try:
            return self._propose(sequences, running, num_waiting)
        except ServerStopping:
            raise
        except StageFailed as error:
            logger.error("a stage failed: %s", error)
            self.note_failure(error.stage)
            return DraftedTrees()

    def _asks(self, sequence: EngineSequence, is_skipped: bool) -> bool:
        return self._histories.asks(sequence.id, _is_priced(sequence), is_skipped)

    def _propose(
        self,
        sequences: Sequence[EngineSequence],
        running: Sequence[EngineSequence],
        num_waiting: int,
    ) -> DraftedTrees:
        start = time.perf_counter()
        are_priced = all(_is_priced(sequence) for sequence in sequences)
        self._last_step = (len(running), len(sequences)) if are_priced else None
        with self._metrics.timed("draft"), self._health.calling("draft"):
            reply = self._drafter.draft(self._draft_request(sequences))
            proposals = _unpacked(reply)
        self._metrics.note_draft(reply)
        if not sequences:
            return DraftedTrees()
        with self._metrics.timed("build"), self._health.calling("tree_builder"):
            built = self._tree_builder.build(
                self._build_request(sequences, reply, running, num_waiting)
            )
        self._least_survival = built.least_survival
        self._schedule.set_next(int(built.draft_next[0]), len(running))
        self._metrics.note_build(built, len(running))
        for sequence, proposal in zip(sequences, proposals, strict=True):
            if not _stands_at(sequence, proposal):
                self._sync.finish(sequence.id)  # and is started again with the next draft
        asking_ms = 1e3 * (time.perf_counter() - start) / len(sequences)
        return replace(_selected_trees(sequences, proposals, built), asking_ms=asking_ms)

    def _draft_request(self, sequences: Sequence[EngineSequence]) -> DraftRequest:
        return DraftRequest(
            **self._sync.starts(sequences),
            **self._sync.updates(sequences),
            sequence_ids=np.array([s.id for s in sequences], np.int64),
            max_depths=np.array([s.max_depth for s in sequences], np.int32),
            least_survival=self._least_survival,
            **self._hidden_states.take(s.id for s in sequences),
        )

    def _build_request(
        self,
        sequences: Sequence[EngineSequence],
        reply: DraftReply,
        running: Sequence[EngineSequence],
        num_waiting: int,
    ) -> BuildRequest:
        num_prompt_tokens = min(
            sum(len(s.token_ids) for s in running if not s.is_prefilled),
            self._prompt_budget.rows(running),
        )
        params = [s.request.params for s in sequences]
        return BuildRequest(
            num_nodes=reply.num_nodes,
            parents=reply.parents,
            log_probs=reply.log_probs,
            entropies=reply.entropies,
            policies=np.array([p.policy for p in params], np.int32),
            node_budgets=np.array([p.node_budget for p in params], np.int32),
            acceptances=np.array([p.acceptance for p in params], np.int32),
            num_running=np.array([len(running)], np.int32),
            num_waiting=np.array([num_waiting], np.int32),
            num_prompt_tokens=np.array([num_prompt_tokens], np.int32),
            num_free_blocks=np.array([self._metrics.free_blocks], np.int32),
            **self._step_stats.fields,
        )


def _unpacked(reply: DraftReply) -> list[Proposal]:
    try:
        return unpack_proposals(reply)
    except ValueError as error:
        raise StageFailed("draft", f"its reply is malformed: {error}") from error


def _stands_at(sequence: EngineSequence, proposal: Proposal) -> bool:
    """Whether the drafter knows the tokens of the sequence."""
    return int(proposal.tree.token_ids[0]) == sequence.token_ids[-1]


def _selected_trees(
    sequences: Sequence[EngineSequence], proposals: Sequence[Proposal], built: BuildReply
) -> DraftedTrees:
    """The chosen part of every proposal; a sequence whose choice is no tree brings its anchor."""
    try:
        selected = split_ragged(built.selected, built.num_selected)
        triples = list(zip(sequences, proposals, selected, strict=True))
    except ValueError as error:
        raise StageFailed("tree_builder", f"its reply is malformed: {error}") from error
    trees: dict[int, _DraftedTree] = {}
    traced: dict[int, TracedTree] = {}
    for sequence, proposal, nodes in triples:
        if not _stands_at(sequence, proposal):
            continue
        try:
            tree = proposal.tree.subtree(nodes)
            rows = [proposal.rows[0], *(proposal.rows[node] for node in nodes)]
        except (ValueError, IndexError):
            logger.exception("the nodes chosen for sequence %d are no tree", sequence.id)
            continue
        trees[sequence.id] = (tree, rows)
        if sequence.trace is not None:
            traced[sequence.id] = _traced(sequence, tree, proposal, nodes, built)
    return DraftedTrees(trees, traced)


def _traced(
    sequence: EngineSequence,
    tree: DraftTree,
    proposal: Proposal,
    nodes: np.ndarray,
    built: BuildReply,
) -> TracedTree:
    """With the survival that the tree builder saw when it chose the nodes."""
    policy = sequence.request.params.policy
    log_odds_correction = float(built.log_odds_correction[0]) if policy.is_calibrated else 0.0
    price = float(built.price[0]) if policy is PolicyName.PRICED else None
    log_probs = correct_log_odds(proposal.log_probs, proposal.tree.parents, log_odds_correction)
    survival = path_survival(log_probs[np.concatenate(([0], nodes))], tree.parents)
    return TracedTree(tree, survival, price, float(built.predicted_ms[0]))
