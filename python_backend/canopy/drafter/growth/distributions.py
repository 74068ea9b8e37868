"""A drafter model's next-token distributions, and the children that each mode makes of them.

    greedy, target_only   the most probable tokens, by log q
    coupled               by log q + c * G, with the target's own noise G at the child's position
    rejection, traversal  drawn without replacement from the renormalized row of the best tokens

q is the drafter's distribution at the request's temperature (at 1 for greedy). In the first two
lines the estimate of an edge is read off the token's own score, which no lossless rule of those
modes forbids. In the last it is the slot's bound, known before the draw.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import torch

from canopy.acceptance import draft_noise, draw_children, slot_log_probs
from canopy.config import DrafterConfig
from canopy.drafter.growth.levelwise import ChildSlots
from canopy.drafter.source import DraftSequence
from canopy.sampling import Acceptance
from canopy.tree import ProposalRow
from canopy_kernels.sampling.noise import gumbel

# The noise points at tokens from far down the drafter's ranking.
MIN_COUPLED_CANDIDATES = 128


@dataclass(frozen=True)
class NextTokenDistribution:
    """The most probable next tokens at one node, best first."""

    token_ids: np.ndarray  # int32 [K]
    log_probs: np.ndarray  # float32 [K], of the whole distribution
    entropy: float  # bits, of the whole distribution


@dataclass(frozen=True)
class NodeContext:
    """Where in its sequence and its tree a node stands."""

    sequence: DraftSequence
    node: int
    child_position: int  # 0-based index in the sequence of the node's children
    path: list[int] = field(default_factory=list)  # tokens from below the anchor down to the node


def next_token_distributions(
    logits: torch.Tensor, temperatures: Sequence[float], num_candidates: int
) -> list[NextTokenDistribution]:
    """The head of every row's distribution.

    logits: float32 [L, V]. temperatures: [L], positive. Raises ValueError for a row that holds
    NaN or infinity.
    """
    scale = torch.tensor(temperatures, dtype=torch.float32, device=logits.device)
    log_probs = torch.log_softmax(logits.float() / scale[:, None], dim=-1)
    entropies = -(log_probs.exp() * log_probs).sum(dim=-1) / np.log(2.0)
    if not bool(torch.isfinite(entropies).all()):
        raise ValueError("the drafter's logits hold NaN or infinity")
    best = torch.topk(log_probs, min(num_candidates, logits.shape[1]), dim=-1)
    values, indices = best.values.cpu().numpy(), best.indices.cpu().numpy().astype(np.int32)
    return [
        NextTokenDistribution(indices[row], values[row], float(entropy))
        for row, entropy in enumerate(entropies.tolist())
    ]


def propose_children(
    head: NextTokenDistribution, context: NodeContext, drafter: DrafterConfig
) -> ChildSlots:
    """The slots below a node, by the acceptance mode of its sequence."""
    mode = context.sequence.params.mode
    if mode.draws_children:
        return _propose_drawn(head, context, drafter.row_size)
    if mode is Acceptance.COUPLED:
        return _propose_coupled(head, context, drafter.coupling)
    return _propose_ranked(head.token_ids, head.log_probs, head.entropy)


def _propose_ranked(token_ids: np.ndarray, log_probs: np.ndarray, entropy: float) -> ChildSlots:
    return ChildSlots(log_probs.tolist(), lambda num: token_ids[:num].tolist(), entropy)


def _propose_coupled(
    head: NextTokenDistribution, context: NodeContext, coupling: float
) -> ChildSlots:
    noise = gumbel(context.sequence.params.seed, context.child_position, head.token_ids)
    scores = head.log_probs + coupling * noise
    order = np.argsort(-scores, kind="stable")
    return _propose_ranked(head.token_ids[order], _normalized(scores[order]), head.entropy)


def _propose_drawn(head: NextTokenDistribution, context: NodeContext, row_size: int) -> ChildSlots:
    row = ProposalRow(head.token_ids[:row_size], _normalized(head.log_probs[:row_size]))
    # Numbered by the round: what one round drew can shape the next, so that draws afresh.
    random_source = draft_noise(
        context.sequence.params.seed, len(context.sequence.token_ids), context.node
    )
    return ChildSlots(
        log_probs=slot_log_probs(row, row_size).tolist(),
        token_ids=lambda num: draw_children(row, num, random_source).tolist(),
        entropy=head.entropy,
        row=row,
    )


def _normalized(scores: np.ndarray) -> np.ndarray:
    """Log-probs of softmax(scores); float32 [n]."""
    shifted = scores.astype(np.float64) - scores.max()
    return (shifted - np.log(np.exp(shifted).sum())).astype(np.float32)
