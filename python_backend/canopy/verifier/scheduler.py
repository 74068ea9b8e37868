"""Which rows every sequence computes in one verify step.

    known tokens   |<- committed ->|<- chain ->|<- later steps ->|
    rows                           chain, then the drafted tree if the chain ends at the anchor

A sequence that decodes has a chain of one: its anchor. A longer one is a prompt chunk.
"""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from canopy.kv_cache.block_manager import BlockManager
from canopy.logits_processors.processor import LogitsProcessor
from canopy.models.step_batch import Segment
from canopy.sampling import SamplingParams
from canopy.tree import DraftTree, ProposalRow

# Logits of prompt rows take room: so many at once of a sequence whose prompt is scored.
MAX_SCORED_ROWS = 64


@dataclass
class TargetSequence:
    """What the verifier keeps about a sequence, beside the blocks of the manager."""

    id: int
    token_ids: list[int]  # all known; the last one is the anchor of the next round
    num_emitted: int
    params: SamplingParams
    num_cached_tokens: int = 0
    processor: LogitsProcessor | None = None  # where its options change logits

    @property
    def scores_prompt(self) -> bool:
        """Whether log-probs of its prompt are still owed."""
        return self.params.prompt_logprobs >= 0 and self.num_emitted == 0


@dataclass(frozen=True)
class VerifyInput:
    """A known sequence and the tree it brings to this step."""

    sequence: TargetSequence
    tree: DraftTree
    rows: list[ProposalRow]  # one per node, the anchor included

    def without_nodes(self) -> "VerifyInput":
        """The anchor alone."""
        return VerifyInput(
            self.sequence, DraftTree.of_anchor(self.sequence.token_ids[-1]), self.rows[:1]
        )


@dataclass(frozen=True)
class ScheduledSequence:
    """The part of a step that one sequence gets."""

    verify_input: VerifyInput
    num_committed: int
    num_chain_tokens: int  # at least 1

    @property
    def completes_prefill(self) -> bool:
        return self.num_committed + self.num_chain_tokens == len(
            self.verify_input.sequence.token_ids
        )

    @property
    def num_scored(self) -> int:
        """First rows of the chain whose logits score the prompt token that follows."""
        is_asked = self.verify_input.sequence.scores_prompt
        return self.num_chain_tokens - self.completes_prefill if is_asked else 0

    @property
    def scored_token_ids(self) -> list[int]:
        first = self.num_committed + 1
        return self.verify_input.sequence.token_ids[first : first + self.num_scored]

    @property
    def num_node_logits(self) -> int:
        """Rows of the anchor and the drafted nodes."""
        return self.verify_input.tree.num_nodes + 1 if self.completes_prefill else 0

    def segment(self, block_table: Sequence[int]) -> Segment:
        """The rows; those from the anchor on want logits, and those that score the prompt."""
        tree, end = self.verify_input.tree, self.num_committed + self.num_chain_tokens
        chain = self.verify_input.sequence.token_ids[self.num_committed : end]
        anchor_row = self.num_chain_tokens - 1
        num_rows = self.num_chain_tokens + tree.num_nodes
        return Segment(
            context_length=self.num_committed,
            block_table=block_table,
            token_ids=np.concatenate([chain, tree.token_ids[1:]]),
            parents=np.concatenate([np.arange(-1, anchor_row), anchor_row + tree.parents[1:]]),
            logit_rows=np.concatenate(
                [np.arange(self.num_scored), np.arange(num_rows - self.num_node_logits, num_rows)]
            ),
        )


@dataclass(frozen=True)
class Schedule:
    """Shares in the order of the offers, and the ids of sequences whose blocks were taken back."""

    scheduled_sequences: list[ScheduledSequence]
    preempted_ids: set[int]


def schedule(
    verify_inputs: Sequence[VerifyInput], blocks: BlockManager, max_chunk_tokens: int
) -> Schedule:
    """Reserve the blocks of a step; offers stand oldest first.

    Chains come first: when blocks run out, the youngest sequence gives up its own, at last the
    one in need. Then trees take what is left, and where nothing is left the anchor goes alone, so
    a tree costs nobody its place. Prompt chunks share `max_chunk_tokens`; a sequence that gets
    nothing of it has no share.
    """
    pending, scheduled_sequences, preempted_ids = deque(verify_inputs), [], set()
    num_chunk_tokens_left = max_chunk_tokens
    while pending:
        verify_input = pending.popleft()
        num_committed = blocks.num_committed(verify_input.sequence.id)
        num_chain_tokens = len(verify_input.sequence.token_ids) - num_committed
        if num_chain_tokens > 1:
            num_chain_tokens = min(num_chain_tokens, num_chunk_tokens_left)
            if verify_input.sequence.scores_prompt:
                num_chain_tokens = min(num_chain_tokens, MAX_SCORED_ROWS)
            num_chunk_tokens_left -= num_chain_tokens
        if num_chain_tokens == 0:
            continue
        while not blocks.reserve(verify_input.sequence.id, num_committed + num_chain_tokens):
            victim_id = (pending.pop() if pending else verify_input).sequence.id
            blocks.finish(victim_id)
            preempted_ids.add(victim_id)
            if victim_id == verify_input.sequence.id:
                break
        else:
            scheduled_sequences.append(
                ScheduledSequence(verify_input, num_committed, num_chain_tokens)
            )
    return Schedule(
        [_with_tree(scheduled, blocks) for scheduled in scheduled_sequences], preempted_ids
    )


def _with_tree(scheduled: ScheduledSequence, blocks: BlockManager) -> ScheduledSequence:
    num_tokens = (
        scheduled.num_committed + scheduled.num_chain_tokens + scheduled.verify_input.tree.num_nodes
    )
    if scheduled.completes_prefill and blocks.reserve(
        scheduled.verify_input.sequence.id, num_tokens
    ):
        return scheduled
    return replace(scheduled, verify_input=scheduled.verify_input.without_nodes())
