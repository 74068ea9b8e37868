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
from canopy.models.step_batch import Segment
from canopy.sampling import SamplingParams
from canopy.tree import DraftTree, ProposalRow


@dataclass
class TargetSequence:
    """What the verifier keeps about a sequence, beside the blocks of the manager."""

    id: int
    token_ids: list[int]  # all known; the last one is the anchor of the next round
    num_emitted: int
    params: SamplingParams
    num_cached_tokens: int = 0


@dataclass(frozen=True)
class Offer:
    """A known sequence and the tree it brings to this step."""

    sequence: TargetSequence
    tree: DraftTree
    rows: list[ProposalRow]  # one per node, the anchor included

    def without_nodes(self) -> "Offer":
        """The anchor alone."""
        return Offer(self.sequence, DraftTree.of_anchor(self.sequence.token_ids[-1]), self.rows[:1])


@dataclass(frozen=True)
class Share:
    """The part of a step that one sequence gets."""

    offer: Offer
    num_committed: int
    num_chain: int  # at least 1

    @property
    def reaches_anchor(self) -> bool:
        return self.num_committed + self.num_chain == len(self.offer.sequence.token_ids)

    def segment(self, block_table: Sequence[int]) -> Segment:
        """The rows; those from the anchor on want logits."""
        tree, end = self.offer.tree, self.num_committed + self.num_chain
        chain = self.offer.sequence.token_ids[self.num_committed : end]
        anchor_row = self.num_chain - 1
        num_rows = self.num_chain + tree.num_nodes
        return Segment(
            context_length=self.num_committed,
            block_table=block_table,
            token_ids=np.concatenate([chain, tree.token_ids[1:]]),
            parents=np.concatenate([np.arange(-1, anchor_row), anchor_row + tree.parents[1:]]),
            logit_rows=np.arange(anchor_row if self.reaches_anchor else num_rows, num_rows),
        )


@dataclass(frozen=True)
class Schedule:
    """Shares in the order of the offers, and the ids of sequences whose blocks were taken back."""

    shares: list[Share]
    preempted_ids: set[int]


def schedule(offers: Sequence[Offer], blocks: BlockManager, max_chunk_tokens: int) -> Schedule:
    """Reserve the blocks of a step; offers stand oldest first.

    Chains come first: when blocks run out, the youngest sequence gives up its own, at last the
    one in need. Then trees take what is left, and where nothing is left the anchor goes alone, so
    a tree costs nobody its place. Prompt chunks share `max_chunk_tokens`; a sequence that gets
    nothing of it has no share.
    """
    pending, shares, preempted_ids = deque(offers), [], set()
    num_chunk_tokens_left = max_chunk_tokens
    while pending:
        offer = pending.popleft()
        num_committed = blocks.num_committed(offer.sequence.id)
        num_chain = len(offer.sequence.token_ids) - num_committed
        if num_chain > 1:
            num_chain = min(num_chain, num_chunk_tokens_left)
            num_chunk_tokens_left -= num_chain
        if num_chain == 0:
            continue
        while not blocks.reserve(offer.sequence.id, num_committed + num_chain):
            victim_id = (pending.pop() if pending else offer).sequence.id
            blocks.finish(victim_id)
            preempted_ids.add(victim_id)
            if victim_id == offer.sequence.id:
                break
        else:
            shares.append(Share(offer, num_committed, num_chain))
    return Schedule([_with_tree(share, blocks) for share in shares], preempted_ids)


def _with_tree(share: Share, blocks: BlockManager) -> Share:
    num_tokens = share.num_committed + share.num_chain + share.offer.tree.num_nodes
    if share.reaches_anchor and blocks.reserve(share.offer.sequence.id, num_tokens):
        return share
    return replace(share, offer=share.offer.without_nodes())
