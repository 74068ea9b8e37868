"""Proposals and their rows, packed into the ragged arrays of messages.py and back."""

from collections.abc import Sequence
from typing import TypedDict

import numpy as np

from canopy.protocol.messages import DraftReply
from canopy.tree import Forest, Proposal, ProposalRow
from canopy.tree.forest import offsets_of, split_ragged


class PackedRows(TypedDict):
    """The row fields of DraftReply and VerifyRequest."""

    row_lengths: np.ndarray
    row_token_ids: np.ndarray
    row_log_probs: np.ndarray


def pack_rows(rows: Sequence[ProposalRow]) -> PackedRows:
    """Rows of all nodes of all sequences, in order."""
    empty = ProposalRow.empty()
    if all(row.is_empty for row in rows):
        return PackedRows(
            row_lengths=np.zeros(len(rows), np.int32),
            row_token_ids=empty.token_ids,
            row_log_probs=empty.log_probs,
        )
    return PackedRows(
        row_lengths=np.array([len(row.token_ids) for row in rows], np.int32),
        row_token_ids=np.concatenate([empty.token_ids, *(row.token_ids for row in rows)]),
        row_log_probs=np.concatenate([empty.log_probs, *(row.log_probs for row in rows)]),
    )


def unpack_rows(
    row_lengths: np.ndarray, row_token_ids: np.ndarray, row_log_probs: np.ndarray
) -> list[ProposalRow]:
    """The inverse of `pack_rows`. Raises ValueError when the lengths do not add up."""
    if not (row_lengths.any() or len(row_token_ids) or len(row_log_probs)):
        return [ProposalRow.empty()] * len(row_lengths)
    token_ids = split_ragged(row_token_ids, row_lengths)
    log_probs = split_ragged(row_log_probs, row_lengths)
    return [ProposalRow(ids, logs) for ids, logs in zip(token_ids, log_probs, strict=True)]


def pack_proposals(proposals: Sequence[Proposal], num_failed: int = 0) -> DraftReply:
    """One reply for all sequences, in order; so many of them are anchors for want of better."""
    forest = Forest.pack([proposal.tree for proposal in proposals])
    empty = np.zeros(0, np.float32)
    return DraftReply(
        num_nodes=forest.num_nodes,
        token_ids=forest.token_ids,
        parents=forest.parents,
        log_probs=np.concatenate([empty, *(p.log_probs for p in proposals)]),
        entropies=np.concatenate([empty, *(p.entropies for p in proposals)]),
        **pack_rows([row for proposal in proposals for row in proposal.rows]),
        num_failed=np.array([num_failed], np.int32),
    )


def unpack_proposals(reply: DraftReply) -> list[Proposal]:
    """The inverse of `pack_proposals`. Raises ValueError for anything malformed."""
    trees = Forest(reply.num_nodes, reply.token_ids, reply.parents).unpack()
    sizes = reply.num_nodes + 1
    log_probs = split_ragged(reply.log_probs, sizes)
    entropies = split_ragged(reply.entropies, sizes)
    rows = unpack_rows(reply.row_lengths, reply.row_token_ids, reply.row_log_probs)
    starts = offsets_of(sizes)
    return [
        Proposal(tree, log_probs[i], entropies[i], rows[starts[i] : starts[i + 1]])
        for i, tree in enumerate(trees)
    ]
