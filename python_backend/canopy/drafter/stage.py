"""The draft stage: knows every sequence's tokens, and asks the deployment's source for trees."""

import logging
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from canopy.config import Deployment, DrafterConfig, TreeConfig
from canopy.costs.profile import Profile
from canopy.costs.profile_file import load_profile
from canopy.drafter.source import (
    DraftSequence,
    DraftTask,
    HiddenStateReader,
    ProposalSource,
)
from canopy.drafter.source_choice import make_source
from canopy.grammar.target import target_grammars
from canopy.logits_processors.factory import LogitsProcessors
from canopy.model_store.folders import model_folder
from canopy.models.config import ModelConfig
from canopy.protocol.hidden_states import request_hidden_states
from canopy.protocol.messages import UNKNOWN_ANCHOR, DraftReply, DraftRequest
from canopy.protocol.proposals import pack_proposals
from canopy.protocol.sequence_updates import StartedSequence, started_sequences
from canopy.sampling import Acceptance
from canopy.tree import Proposal
from canopy.tree.forest import split_ragged
from canopy.tree.policies import LEAST_PRICED_SURVIVAL, PolicySettings
from canopy.tree.survival import Calibration

logger = logging.getLogger(__name__)

_NOT_MEASURED = Profile()
_ANY_VOCABULARY = LogitsProcessors(1 << 20)


class DrafterStage:
    """`stages.protocol.Drafter` over one source.

    A sequence that the source cannot serve brings its anchor alone this step, and is counted in
    `num_failed_proposals`; the others are not touched by it. One that is not known, or could not
    be taken up, brings UNKNOWN_ANCHOR.
    """

    def __init__(
        self,
        source: ProposalSource,
        drafter: DrafterConfig,
        tree: TreeConfig,
        profile: Profile = _NOT_MEASURED,
        num_missing_sources: int = 0,
        processors: LogitsProcessors = _ANY_VOCABULARY,
    ) -> None:
        self._source = source
        self._profile = profile
        self._max_nodes = drafter.max_nodes
        self._tree = tree
        self._sequences: dict[int, DraftSequence] = {}
        self.num_failed_proposals = 0
        self._num_missing_sources = num_missing_sources
        self._processors = processors

    def draft(self, request: DraftRequest) -> DraftReply:
        """Apply the changes, then propose. Raises ValueError for ragged fields that do not fit."""
        num_failed = self.num_failed_proposals
        self._apply_changes(request)
        least = max([LEAST_PRICED_SURVIVAL, *request.least_survival.tolist()])
        pairs = list(zip(request.sequence_ids.tolist(), request.max_depths.tolist(), strict=True))
        tasks = [
            self._task(self._sequences[sequence_id], max_depth, least)
            for sequence_id, max_depth in pairs
            if sequence_id in self._sequences
        ]
        found = iter(self._propose(tasks))
        proposals = [next(found) if i in self._sequences else self._unknown() for i, _ in pairs]
        reply = pack_proposals(proposals, self.num_failed_proposals - num_failed)
        reply.num_source_failures = np.array([self._num_source_failures], np.int32)
        return reply

    @property
    def _num_source_failures(self) -> int:
        own = self._source.num_failures if isinstance(self._source, HiddenStateReader) else 0
        return self._num_missing_sources + own

    def _apply_changes(self, request: DraftRequest) -> None:
        for sequence_id in request.finished_ids:
            self._finish(int(sequence_id))
        changes = started_sequences(request)
        for sequence_id, reason in changes.refused.items():
            logger.error("sequence %d cannot be drafted for: %s", sequence_id, reason)
            self._finish(sequence_id)
        for started in changes.sequences:
            self._finish(started.sequence_id)
            if len(started.token_ids):
                self._start(started)
        grown = split_ragged(request.updated_token_ids, request.updated_lengths)
        for sequence_id, token_ids in zip(request.updated_ids.tolist(), grown, strict=True):
            if sequence := self._sequences.get(sequence_id):
                self._extend(sequence, token_ids.tolist())
        if isinstance(self._source, HiddenStateReader):
            self._take_features(self._source, request)

    def _start(self, started: StartedSequence) -> None:
        token_ids, params = started.token_ids.tolist(), started.params
        try:
            processor = self._processors.start(params, token_ids, started.num_emitted)
        except ValueError as error:
            logger.error("sequence %d cannot be drafted for: %s", started.sequence_id, error)
            return
        self._sequences[started.sequence_id] = DraftSequence(
            started.sequence_id, token_ids, params, processor
        )

    def _extend(self, sequence: DraftSequence, token_ids: list[int]) -> None:
        sequence.token_ids.extend(token_ids)
        try:
            if sequence.processor:
                sequence.processor.commit(token_ids)
        except ValueError as error:
            logger.error("sequence %d cannot be drafted for: %s", sequence.sequence_id, error)
            self._finish(sequence.sequence_id)

    def _take_features(self, source: HiddenStateReader, request: DraftRequest) -> None:
        for sequence_id, hidden_states in request_hidden_states(request).items():
            try:
                source.take_hidden_states({sequence_id: hidden_states})
            except Exception:
                logger.exception("the features of sequence %d cannot be read", sequence_id)

    def _finish(self, sequence_id: int) -> None:
        self._sequences.pop(sequence_id, None)
        self._source.finish(sequence_id)

    def _unknown(self) -> Proposal:
        self.num_failed_proposals += 1
        return Proposal.of_anchor(UNKNOWN_ANCHOR)

    def _task(self, sequence: DraftSequence, max_depth: int, priced_survival: float) -> DraftTask:
        params = sequence.params
        budget = min(params.node_budget, self._max_nodes)
        settings = PolicySettings.of_request(
            params.policy, budget, self._tree, self._profile.sibling_rates
        )
        temperature = 0.0 if params.mode is Acceptance.GREEDY else params.temperature
        return DraftTask(
            sequence,
            replace(
                settings,
                max_depth=min(settings.max_depth, max_depth),
                priced_survival=priced_survival,
            ),
            self._profile.calibration_of(temperature)
            if params.policy.is_calibrated
            else Calibration(),
        )

    def _propose(self, tasks: Sequence[DraftTask]) -> list[Proposal]:
        try:
            return self._source.propose(tasks)
        except Exception:
            logger.exception("a proposal failed: the sequences of this step are drafted one by one")
            return [self._propose_alone(task) for task in tasks]

    def _propose_alone(self, task: DraftTask) -> Proposal:
        try:
            return self._source.propose([task])[0]
        except Exception:
            self.num_failed_proposals += 1
            return Proposal.of_anchor(task.sequence.token_ids[-1])


def make_drafter(deployment: Deployment, profile: Profile | None = None) -> DrafterStage:
    """The draft stage of a deployment. Raises InvalidDeployment for an unusable drafter."""
    profile = profile or load_profile(deployment)
    source, num_missing = make_source(deployment)
    folder = model_folder(deployment.target.model)
    vocab_size = ModelConfig.from_folder(folder).vocab_size
    processors = LogitsProcessors(vocab_size, target_grammars(folder))
    return DrafterStage(
        source, deployment.drafter, deployment.tree, profile, num_missing, processors
    )
