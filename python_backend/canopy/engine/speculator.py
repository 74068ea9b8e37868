"""The speculative half of a turn: which tree every running sequence brings to the verifier.

Speculation may fail without a request noticing: a dead drafter or builder means plain decoding
until the stage is back.
"""

import itertools
import logging
import threading
import time
from collections.abc import Callable
from collections.abc import Sequence as SequenceOf
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from canopy.engine.metrics import EngineMetrics
from canopy.engine.request import Sequence
from canopy.engine.stage_sync import StageLedger
from canopy.engine.step_stats import TurnMeter
from canopy.engine.trace import TracedTree, path_survival
from canopy.errors import CanopyError, StageFailed
from canopy.protocol.hidden_states import FeatureLedger
from canopy.protocol.messages import BuildReply, BuildRequest, DraftReply, DraftRequest, VerifyReply
from canopy.protocol.proposals import pack_rows, unpack_proposals
from canopy.protocol.stages import Drafter, TreeBuilder
from canopy.sampling import PolicyName
from canopy.tree import DraftTree, Forest, Proposal, ProposalRow
from canopy.tree.forest import split_ragged
from canopy.tree.survival import shifted

logger = logging.getLogger(__name__)

_MAX_RESTART_PAUSE_S = 30.0

_DraftedTree = tuple[DraftTree, list[ProposalRow]]


@dataclass(frozen=True)
class TurnTrees:
    """The drafted trees of a turn by sequence id; every other sequence brings its anchor."""

    trees: dict[int, _DraftedTree] = field(default_factory=dict)
    traced: dict[int, TracedTree] = field(default_factory=dict)  # of those that ask for a trace

    def tree(self, sequence: Sequence) -> DraftTree | None:
        """The drafted tree of a sequence; None when it brings its anchor alone."""
        drafted = self.trees.get(sequence.id)
        return drafted[0] if drafted else None

    def num_nodes(self, sequence: Sequence) -> int:
        """Drafted nodes of a sequence this turn."""
        tree = self.tree(sequence)
        return tree.num_nodes if tree else 0

    def traced_tree(self, sequence: Sequence, anchor: int) -> TracedTree:
        """For the trace of a sequence that stood at the token `anchor`."""
        return self.traced.get(sequence.id) or TracedTree.of_anchor(anchor)

    def fields(self, sequences: SequenceOf[Sequence]) -> dict[str, Any]:
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


def _anchor_alone(sequence: Sequence) -> _DraftedTree:
    return DraftTree.of_anchor(sequence.token_ids[-1]), [ProposalRow.empty()]


class Proposer:
    """Asks the drafter and the tree builder, and keeps what the drafter has been told."""

    def __init__(
        self,
        drafter: Drafter,
        tree_builder: TreeBuilder,
        restart: Callable[[str], None],
        metrics: EngineMetrics,
    ) -> None:
        self._drafter = drafter
        self._tree_builder = tree_builder
        self._restart = restart
        self._metrics = metrics
        self._ledger = StageLedger()
        self._features = FeatureLedger()
        self._meter = TurnMeter(metrics)
        self._skip_turns = 0
        self._least_survival = np.zeros(0, np.float32)  # as the last BuildReply has it
        self._num_running_at_skip = 0
        self._healing: threading.Thread | None = None

    def finish(self, sequence_id: int) -> None:
        """The drafter is to drop a sequence."""
        self._ledger.finish(sequence_id)
        self._features.drop(sequence_id)

    def note_features(self, running: SequenceOf[Sequence], reply: VerifyReply) -> None:
        """Keep for the drafter what a verify reply tells about the sequences it was asked for."""
        self._features.note([s.id for s in running], reply)
        for sequence in running:
            if not sequence.speculates:
                self._features.drop(sequence.id)

    def propose(self, running: SequenceOf[Sequence], num_waiting: int) -> TurnTrees:
        """Trees for this turn; none at all when nothing is worth drafting."""
        self._meter.begin(len(running), sum(s.is_prefilled for s in running))
        self._metrics.node_budget = 0.0
        sequences = [s for s in running if s.wants_draft]
        if self._healing is not None and self._healing.is_alive():
            return TurnTrees()
        if 2 * len(running) < self._num_running_at_skip:
            self._skip_turns = 0  # drafting may pay for the few that are left
        if self._skip_turns > 0 and sequences:
            self._skip_turns -= 1
            return TurnTrees()
        if not sequences and not self._ledger.has_news:
            return TurnTrees()
        try:
            return self._propose(sequences, running, num_waiting)
        except StageFailed as error:
            self._heal(error)
            return TurnTrees()

    def _propose(
        self, sequences: SequenceOf[Sequence], running: SequenceOf[Sequence], num_waiting: int
    ) -> TurnTrees:
        with self._metrics.timed("draft"):
            reply = self._drafter.draft(self._draft_request(sequences))
            proposals = _unpacked(reply)
        self._metrics.note_draft(reply)
        if not sequences:
            return TurnTrees()
        with self._metrics.timed("build"):
            built = self._tree_builder.build(
                self._build_request(sequences, reply, running, num_waiting)
            )
        self._least_survival = built.least_survival
        self._skip_turns = int(built.draft_next[0]) - 1
        self._num_running_at_skip = len(running) if self._skip_turns > 0 else 0
        self._metrics.note_build(built, len(running))
        for sequence, proposal in zip(sequences, proposals, strict=True):
            if not _stands_at(sequence, proposal):
                self._ledger.finish(sequence.id)  # and is started again with the next draft
        return _selected_trees(sequences, proposals, built)

    def _draft_request(self, sequences: SequenceOf[Sequence]) -> DraftRequest:
        return DraftRequest(
            **self._ledger.starts(sequences),
            **self._ledger.updates(sequences),
            sequence_ids=np.array([s.id for s in sequences], np.int64),
            max_depths=np.array([s.max_depth for s in sequences], np.int32),
            least_survival=self._least_survival,
            **self._features.take(s.id for s in sequences),
        )

    def _build_request(
        self,
        sequences: SequenceOf[Sequence],
        reply: DraftReply,
        running: SequenceOf[Sequence],
        num_waiting: int,
    ) -> BuildRequest:
        num_prompt_tokens = sum(len(s.token_ids) for s in running if not s.is_prefilled)
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
            **self._meter.fields,
        )

    def _heal(self, error: StageFailed) -> None:
        """Bring the stage back beside the running turns."""
        self._metrics.count_failure(error.stage)
        self._ledger.forget_all()
        self._healing = threading.Thread(
            target=self._restart_stage, args=(error.stage,), name="canopy-heal", daemon=True
        )
        self._healing.start()

    def _restart_stage(self, stage: str) -> None:
        """Try until it works, ever more rarely; meanwhile all decoding is plain."""
        for attempt in itertools.count():
            try:
                self._restart(stage)
                return
            except CanopyError:
                self._metrics.count_failure(stage)
                time.sleep(min(2.0**attempt, _MAX_RESTART_PAUSE_S))


def _unpacked(reply: DraftReply) -> list[Proposal]:
    try:
        return unpack_proposals(reply)
    except ValueError as error:
        raise StageFailed("draft", f"its reply is malformed: {error}") from error


def _stands_at(sequence: Sequence, proposal: Proposal) -> bool:
    """Whether the drafter knows the tokens of the sequence."""
    return int(proposal.tree.token_ids[0]) == sequence.token_ids[-1]


def _selected_trees(
    sequences: SequenceOf[Sequence], proposals: SequenceOf[Proposal], built: BuildReply
) -> TurnTrees:
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
    return TurnTrees(trees, traced)


def _traced(
    sequence: Sequence, tree: DraftTree, proposal: Proposal, nodes: np.ndarray, built: BuildReply
) -> TracedTree:
    """With the survival that the tree builder saw when it chose the nodes."""
    policy = sequence.request.params.policy
    shift = float(built.shift[0]) if policy.is_calibrated else 0.0
    theta = float(built.theta[0]) if policy is PolicyName.PRICED else None
    log_probs = shifted(proposal.log_probs, proposal.tree.parents, shift)
    survival = path_survival(log_probs[np.concatenate(([0], nodes))], tree.parents)
    return TracedTree(tree, survival, theta, float(built.predicted_ms[0]))
