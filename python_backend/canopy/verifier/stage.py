"""The verify stage: one target forward over all trees, acceptance, commit.

    apply changes -> schedule rows and blocks -> forward -> accept and cut -> commit

Nothing is committed before all sequences are decided and every rank has confirmed its part, so a
step that raises leaves the known tokens and the cache as they were. After a commit the cache holds
every known token but the last.
What one sequence brings and cannot be verified fails that sequence, and the step goes on.
"""

import itertools
import logging
from collections.abc import Sequence

import numpy as np
import torch

from canopy.acceptance.acceptor import Acceptor, HostAcceptor
from canopy.acceptance.device_acceptor import DeviceAcceptor
from canopy.config import CacheConfig
from canopy.grammar.compiler import GrammarCompiler
from canopy.kv_cache.block_manager import BlockManager
from canopy.logits_processors.application import apply_edits
from canopy.logits_processors.factory import LogitsProcessors
from canopy.models.decoder import Decoder
from canopy.models.step_batch import AuxHiddenStates, Segment, assemble_step
from canopy.protocol.failures import failure_fields
from canopy.protocol.hidden_states import HiddenStateLayers, reply_fields
from canopy.protocol.logprobs import pack_logprobs
from canopy.protocol.messages import Status, VerifyReply, VerifyRequest
from canopy.protocol.proposals import unpack_rows
from canopy.protocol.sequence_updates import Started, StartedSequence, started_sequences
from canopy.tree import DraftTree, ProposalRow
from canopy.tree.forest import offsets_of, split_ragged
from canopy.verifier.admission import TargetLimits
from canopy.verifier.kernel_warm_up import KernelLimits, compile_kernels
from canopy.verifier.logprobs import attach_logprobs, take_apart
from canopy.verifier.outcome import (
    Outcome,
    accepted_moves,
    attach_hidden_states,
    failed,
    logit_edits,
    to_candidate,
    to_outcome,
)
from canopy.verifier.scheduler import ScheduledSequence, TargetSequence, VerifyInput, schedule
from canopy_kernels.host_to_device import copy_packed

logger = logging.getLogger(__name__)

PackedTree = tuple[np.ndarray, np.ndarray]  # token ids and parents


def acceptor_on(device: torch.device) -> Acceptor:
    """Decides trees where their logits are: on the CPU, or by the kernels."""
    return HostAcceptor() if device.type == "cpu" else DeviceAcceptor()


class TargetVerifier:
    """`stages.protocol.Verifier` over a decoder in this process."""

    def __init__(
        self,
        decoder: Decoder,
        cache: CacheConfig,
        max_step_tokens: int,
        aux_hidden_states: HiddenStateLayers | None = None,
        acceptor: Acceptor | None = None,
        grammars: GrammarCompiler | None = None,
    ) -> None:
        """aux_hidden_states: which replies bring; none: no drafter reads any.

        acceptor: decides the trees; by default the one for where the logits are. grammars: of
        structured output; none: it is refused.
        """
        self.blocks = BlockManager(cache.num_blocks, cache.block_size, cache.prefix_reuse)
        self._decoder = decoder
        self._cache = decoder.new_cache(cache.num_blocks, cache.block_size)
        self._max_step_tokens = max_step_tokens
        self._aux_layers = aux_hidden_states
        self._acceptor = acceptor or acceptor_on(self._cache.device)
        self._limits = TargetLimits(
            decoder.config.vocab_size,
            decoder.config.max_position_embeddings,
            cache.num_blocks * cache.block_size,
        )
        self._processors = LogitsProcessors(decoder.config.vocab_size, grammars)
        self._sequences: dict[int, TargetSequence] = {}
        self._refused: dict[int, str] = {}  # sequences that cannot be verified, and why

    def compile_kernels(self, limits: KernelLimits) -> None:
        """Before the first request, where kernels are compiled at their first use."""
        compile_kernels(self._decoder, self._cache, self._acceptor, limits)

    @torch.inference_mode()  # the one mode of the whole step: its parts choose none
    def verify(self, request: VerifyRequest) -> VerifyReply:
        """Serve every sequence of the message once.

        Raises ValueError for a malformed message: ragged fields that do not fit, or a sequence
        that is named twice.
        """
        trees, rows, started = _trees(request), _rows(request), started_sequences(request)
        ids = request.sequence_ids.tolist()
        if len(set(ids)) != len(ids):
            raise ValueError("a sequence is named twice")
        self._apply(request.finished_ids, started)
        verify_inputs, outcomes = self._offers(ids, trees, rows)
        max_rows = min([self._max_step_tokens, *request.max_prompt_rows.tolist()])
        plan = schedule(verify_inputs, self.blocks, max_rows)
        outcomes |= {
            verify_input.sequence.id: Outcome(Status.PREFILLING) for verify_input in verify_inputs
        }
        for sequence_id in plan.preempted_ids:
            del self._sequences[sequence_id]
            outcomes[sequence_id] = Outcome(Status.PREEMPTED)
        outcomes |= self._step(plan.scheduled_sequences)
        return self._reply(ids, [outcomes[i] for i in ids])

    # Sequences come and go

    def _apply(self, finished_ids: np.ndarray, started: Started) -> None:
        for sequence_id in [*finished_ids.tolist(), *started.refused]:
            self._drop(sequence_id)
        self._refused |= started.refused
        num_kept = self._aux_layers.num_spared_blocks if self._aux_layers else 0
        for new in started.sequences:
            self._drop(new.sequence_id)
            try:
                self._limits.check_start(new)
                sequence = self._started(new)
            except ValueError as error:
                self._refused[new.sequence_id] = str(error)
                continue
            self._sequences[new.sequence_id] = sequence
            # The log-probs of a prompt come from computing all of it.
            num_spared = len(new.token_ids) if sequence.scores_prompt else num_kept
            sequence.num_cached_tokens = self.blocks.start(
                new.sequence_id, new.token_ids, num_spared=num_spared
            )

    def _started(self, new: StartedSequence) -> TargetSequence:
        token_ids = new.token_ids.tolist()
        return TargetSequence(
            id=new.sequence_id,
            token_ids=token_ids,
            num_emitted=new.num_emitted,
            params=new.params,
            processor=self._processors.start(new.params, token_ids, new.num_emitted),
        )

    def _drop(self, sequence_id: int) -> None:
        self._sequences.pop(sequence_id, None)
        self._refused.pop(sequence_id, None)
        self.blocks.finish(sequence_id)

    def _offers(
        self, ids: list[int], trees: list[PackedTree], rows: list[list[ProposalRow]]
    ) -> tuple[list[VerifyInput], dict[int, Outcome]]:
        """What can be verified, and the outcomes of the other sequences."""
        verify_inputs: list[VerifyInput] = []
        outcomes: dict[int, Outcome] = {}
        for sequence_id, packed, tree_rows in zip(ids, trees, rows, strict=True):
            sequence = self._sequences.get(sequence_id)
            if reason := self._refused.get(sequence_id):
                outcomes[sequence_id] = failed(sequence_id, reason)
            elif sequence is None or packed[0][0] != sequence.token_ids[-1]:
                # The engine knows other tokens of it than this stage does: take them up anew.
                self._drop(sequence_id)
                outcomes[sequence_id] = Outcome(Status.UNKNOWN)
            else:
                try:
                    tree = DraftTree(*packed)
                    self._limits.check_tree(len(sequence.token_ids), tree, tree_rows)
                    verify_inputs.append(VerifyInput(sequence, tree, tree_rows))
                except ValueError as error:
                    outcomes[sequence_id] = failed(sequence_id, str(error))
        return verify_inputs, outcomes

    # The step

    def _step(self, scheduled_sequences: Sequence[ScheduledSequence]) -> dict[int, Outcome]:
        if not scheduled_sequences:
            return {}
        segments = [
            s.segment(self.blocks.block_table(s.verify_input.sequence.id))
            for s in scheduled_sequences
        ]
        logits, states = self._forward(segments)
        candidates = [
            to_candidate(scheduled)
            for scheduled in scheduled_sequences
            if scheduled.completes_prefill
        ]
        step = take_apart(scheduled_sequences, logits)
        edits, reasons = logit_edits(scheduled_sequences)
        apply_edits(step.of_nodes, edits)
        results = iter(self._acceptor.accept(candidates, step.of_nodes))
        outcomes = [
            to_outcome(scheduled, next(results) if scheduled.completes_prefill else None, reasons)
            for scheduled in scheduled_sequences
        ]
        outcomes = attach_logprobs(scheduled_sequences, outcomes, step)
        if self._aux_layers:
            outcomes = attach_hidden_states(
                scheduled_sequences, segments, outcomes, states, self._aux_layers.window
            )
        self._decoder.confirm()
        self._move_accepted(scheduled_sequences, segments, outcomes)
        for scheduled, outcome in zip(scheduled_sequences, outcomes, strict=True):
            self._commit(scheduled, outcome)
        return {
            s.verify_input.sequence.id: o
            for s, o in zip(scheduled_sequences, outcomes, strict=True)
        }

    def _forward(self, segments: Sequence[Segment]) -> tuple[torch.Tensor, torch.Tensor]:
        """float32 [L, V] logits and float32 [T, taps, E] states, on the model's device."""
        batch = assemble_step(segments, self.blocks.block_size)
        layers = self._aux_layers.layers if self._aux_layers else ()
        width, device = self._decoder.config.hidden_size if layers else 0, str(self._cache.device)
        aux_hidden_states = AuxHiddenStates.of(layers, batch, width, device)
        logits = self._decoder.forward(batch, self._cache, aux_hidden_states if layers else None)
        return logits, aux_hidden_states.states

    def _move_accepted(
        self,
        scheduled_sequences: Sequence[ScheduledSequence],
        segments: Sequence[Segment],
        outcomes: Sequence[Outcome],
    ) -> None:
        """Close up the accepted path behind the anchor; the last emitted token is not computed."""
        table = accepted_moves(scheduled_sequences, segments, outcomes, self.blocks.block_size)
        if not table.size:
            return
        sides = {"sources": table[0], "destinations": table[1]}
        self._cache.move(**copy_packed(sides, str(self._cache.device)))

    def _commit(self, scheduled: ScheduledSequence, outcome: Outcome) -> None:
        sequence = scheduled.verify_input.sequence
        if outcome.status is not Status.FAILED:
            sequence.token_ids += outcome.emitted
            sequence.num_emitted += len(outcome.emitted)
            self._commit_options(sequence, outcome.emitted)
            num_computed = scheduled.num_chain_tokens + max(len(outcome.emitted) - 1, 0)
            first = scheduled.num_committed
            self.blocks.commit(sequence.id, sequence.token_ids[first : first + num_computed])
        self.blocks.release_scratch(sequence.id)

    def _commit_options(self, sequence: TargetSequence, emitted: Sequence[int]) -> None:
        try:
            if sequence.processor:
                sequence.processor.commit(emitted)
        except ValueError as error:
            self._refused[sequence.id] = str(error)

    def _reply(self, ids: Sequence[int], outcomes: Sequence[Outcome]) -> VerifyReply:
        cached = [self._sequences[i].num_cached_tokens if i in self._sequences else 0 for i in ids]
        window = self._aux_layers.window if self._aux_layers else 0
        return VerifyReply(
            status=np.array([o.status for o in outcomes], np.int32),
            finish=np.array([o.finish for o in outcomes], np.int32),
            num_emitted=np.array([len(o.emitted) for o in outcomes], np.int32),
            emitted_token_ids=np.array([t for o in outcomes for t in o.emitted], np.int32),
            num_accepted=np.array([len(o.path) for o in outcomes], np.int32),
            num_cached_tokens=np.array(cached, np.int32),
            num_free_blocks=np.array([self.blocks.num_free], np.int32),
            num_used_blocks=np.array([self.blocks.num_used], np.int32),
            **failure_fields([o.reason for o in outcomes]),
            **pack_logprobs([o.logprobs for o in outcomes]),
            **pack_logprobs([o.prompt_logprobs for o in outcomes], "prompt_"),
            prompt_logprob_starts=np.array([o.first_prompt_logprob for o in outcomes], np.int32),
            **reply_fields([o.hidden_states for o in outcomes], window),
        )


def _trees(request: VerifyRequest) -> list[PackedTree]:
    if np.any(request.num_nodes < 0) or len(request.num_nodes) != len(request.sequence_ids):
        raise ValueError("every sequence brings one tree")
    sizes = request.num_nodes + 1
    pairs = split_ragged(request.token_ids, sizes), split_ragged(request.parents, sizes)
    return list(zip(*pairs, strict=True))


def _rows(request: VerifyRequest) -> list[list[ProposalRow]]:
    """The proposal rows by sequence, one per node."""
    rows = unpack_rows(request.row_lengths, request.row_token_ids, request.row_log_probs)
    starts = offsets_of(request.num_nodes + 1)
    if len(rows) != starts[-1]:
        raise ValueError(f"there are {starts[-1]} nodes and {len(rows)} proposal rows")
    return [rows[a:b] for a, b in itertools.pairwise(starts)]
