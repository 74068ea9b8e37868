"""What a verify step brings each sequence: the verdict on its tree, cut, and what of it stays."""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import torch

from canopy.acceptance.acceptor import Candidate
from canopy.acceptance.result import VerificationResult
from canopy.logits_processors.edits import LogitEdits, concatenated
from canopy.models.step_batch import Segment, to_float16
from canopy.protocol.hidden_states import HiddenStates
from canopy.protocol.logprobs import TokenLogprobs
from canopy.protocol.messages import Finish, Status
from canopy.text.truncation import truncate
from canopy.tree.forest import offsets_of, split_ragged
from canopy.verifier.scheduler import ScheduledSequence
from canopy_kernels.host_to_device import copy_packed

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Outcome:
    """What one sequence gained in a step."""

    status: Status
    finish: Finish = Finish.NONE
    emitted: tuple[int, ...] = ()
    path: tuple[int, ...] = ()  # drafted nodes whose tokens were emitted
    hidden_states: HiddenStates | None = (
        None  # of what the sequence keeps, where a drafter reads them
    )
    reason: str = ""  # why it failed
    logprobs: TokenLogprobs = field(default_factory=TokenLogprobs.none)  # of what was emitted
    prompt_logprobs: TokenLogprobs = field(default_factory=TokenLogprobs.none)
    first_prompt_logprob: int = 0  # position of the first of them

    @property
    def computed(self) -> np.ndarray:
        """int64 [n] drafted nodes kept; the last emitted token is not computed."""
        return np.array(self.path[: max(len(self.emitted) - 1, 0)], np.int64)


def to_candidate(scheduled: ScheduledSequence) -> Candidate:
    """The tree of a share that reaches its anchor."""
    sequence = scheduled.verify_input.sequence
    return Candidate(
        scheduled.verify_input.tree,
        scheduled.verify_input.rows,
        sequence.params,
        len(sequence.token_ids),
    )


def logit_edits(
    scheduled_sequences: Sequence[ScheduledSequence],
) -> tuple[LogitEdits, dict[int, str]]:
    """What options change in the logits of a step, those of all nodes of complete shares.

    And why some sequences cannot go on, by id.
    """
    parts, reasons, first = [], {}, 0
    for scheduled in scheduled_sequences:
        if not scheduled.completes_prefill:
            continue
        tree, sequence = scheduled.verify_input.tree, scheduled.verify_input.sequence
        try:
            if sequence.processor is not None:
                parts.append(sequence.processor.edits(tree.token_paths).moved(first))
        except ValueError as error:
            reasons[sequence.id] = str(error)
        first += tree.num_nodes + 1
    return concatenated(parts), reasons


def failed(sequence_id: int, reason: str) -> Outcome:
    """The sequence cannot go on."""
    logger.error("sequence %d cannot go on: %s", sequence_id, reason)
    return Outcome(Status.FAILED, reason=reason)


def to_outcome(
    scheduled: ScheduledSequence, result: VerificationResult | None, reasons: Mapping[int, str]
) -> Outcome:
    """The verdict, cut at the first stop. reasons: of `logit_edits`."""
    sequence, tree = scheduled.verify_input.sequence, scheduled.verify_input.tree
    if not scheduled.completes_prefill:
        return Outcome(Status.PREFILLING)
    if sequence.id in reasons:
        return failed(sequence.id, reasons[sequence.id])
    if result is None:
        return failed(
            sequence.id,
            "no next token can be chosen: the target's scores are no numbers"
            " or its parameters leave no token",
        )
    emitted, finish = truncate(result.token_ids(tree), sequence.num_emitted, sequence.params)
    return Outcome(Status.DECODED, finish, tuple(emitted), tuple(result.path[: len(emitted)]))


def accepted_moves(
    scheduled_sequences: Sequence[ScheduledSequence],
    segments: Sequence[Segment],
    outcomes: Sequence[Outcome],
    block_size: int,
) -> np.ndarray:
    """int64 [2, S, P]: slots to copy from and to, so that the accepted rows follow the anchor.

    Sequences whose rows lie in place already are left out; the others are padded with -1.
    """
    moves = []
    for scheduled, segment, outcome in zip(scheduled_sequences, segments, outcomes, strict=True):
        kept, first = outcome.computed, scheduled.num_chain_tokens
        rows = np.stack([first - 1 + kept, first + np.arange(len(kept))])
        rows = rows[:, rows[0] != rows[1]]
        if rows.size:
            moves.append(segment.slots(block_size)[rows])
    table = np.full((2, len(moves), max((m.shape[1] for m in moves), default=0)), -1, np.int64)
    for index, slots in enumerate(moves):
        table[:, index, : slots.shape[1]] = slots
    return table


def attach_hidden_states(
    scheduled_sequences: Sequence[ScheduledSequence],
    segments: Sequence[Segment],
    outcomes: Sequence[Outcome],
    states: torch.Tensor,
    window: int,
) -> list[Outcome]:
    """The outcomes with the states of what their sequences keep; no others leave the device.

    states: float32 [rows of all shares, taps, E].
    """
    kept = [
        np.concatenate(
            [
                np.arange(scheduled.num_chain_tokens),
                scheduled.num_chain_tokens - 1 + outcome.computed,
            ]
        )
        for scheduled, outcome in zip(scheduled_sequences, outcomes, strict=True)
    ]
    starts = offsets_of(np.array([len(segment.token_ids) for segment in segments]))
    rows = [start + rows[-window:] for start, rows in zip(starts[:-1], kept, strict=True)]
    index = copy_packed({"rows": np.concatenate(rows)}, str(states.device))["rows"]
    parts = split_ragged(
        to_float16(states[index].flatten(1)), np.array([len(part) for part in rows])
    )
    return [
        outcome
        if outcome.status is Status.FAILED
        else replace(
            outcome, hidden_states=HiddenStates(scheduled.num_committed + len(k) - len(p), p)
        )
        for scheduled, outcome, k, p in zip(scheduled_sequences, outcomes, kept, parts, strict=True)
    ]
