"""One level of trees that a model grows: the rows to compute, and the children they offer.

A step sees the committed context and its own rows, so a level computes the ancestors of its nodes
again.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch

from canopy.config import DrafterConfig
from canopy.drafter.growth.distributions import (
    MIN_COUPLED_CANDIDATES,
    NextTokenDistribution,
    NodeContext,
    next_token_distributions,
    propose_children,
)
from canopy.drafter.growth.levelwise import LevelwiseProposal
from canopy.logits_processors.candidates import processed_candidates
from canopy.models.step_batch import Segment


@dataclass(frozen=True)
class Level:
    """The frontier of one growth and its drafted ancestors."""

    nodes: list[int]  # ascending
    parents: list[int]  # of each node, its index in `nodes`; -1 below the anchor
    frontier: list[int]  # indices in `nodes`

    @staticmethod
    def of(growth: LevelwiseProposal) -> "Level":
        """The level that a growth asks for next, below its anchor."""
        frontier = growth.frontier()
        nodes = _with_ancestors(growth.parents, frontier)
        index_of = {node: index for index, node in enumerate(nodes)} | {0: -1}
        parents = [index_of[growth.parents[node]] for node in nodes]
        return Level(nodes, parents, [index_of[node] for node in frontier])

    def segment(
        self, growth: LevelwiseProposal, context_length: int, block_table: Sequence[int]
    ) -> Segment:
        """The rows of a step behind the committed context."""
        return Segment(
            context_length=context_length,
            block_table=block_table,
            token_ids=np.array([growth.token_ids[node] for node in self.nodes]),
            parents=np.array(self.parents),
            logit_rows=np.array(self.frontier),
        )


def expand_levels(
    growths: Sequence[LevelwiseProposal],
    logits: torch.Tensor,
    drafter: DrafterConfig,
    token_ids: np.ndarray | None = None,
) -> None:
    """Open the next level of every growth.

    logits: [L, V], of their frontiers in order. token_ids: int32 [V] of a reduced vocabulary.
    Raises ValueError for logits that are not finite.
    """
    contexts = [context for growth in growths for context in _frontier_contexts(growth)]
    temperatures = [context.sequence.params.temperature or 1.0 for context in contexts]
    num_candidates = max(drafter.row_size, MIN_COUPLED_CANDIDATES)
    heads = next_token_distributions(logits, temperatures, num_candidates)
    if token_ids is not None:
        heads = [replace(head, token_ids=token_ids[head.token_ids]) for head in heads]
    heads = [_processed(head, context) for head, context in zip(heads, contexts, strict=True)]
    offers = (
        propose_children(head, context, drafter)
        for head, context in zip(heads, contexts, strict=True)
    )
    for growth in growths:
        frontier = growth.frontier()
        growth.expand(frontier, [next(offers) for _ in frontier])


def _frontier_contexts(growth: LevelwiseProposal) -> list[NodeContext]:
    sequence = growth.task.sequence
    position = len(sequence.token_ids) + growth.depth
    return [
        NodeContext(sequence, node, position, growth.token_path(node)) for node in growth.frontier()
    ]


def _processed(head: NextTokenDistribution, context: NodeContext) -> NextTokenDistribution:
    """As the options of the sequence leave it."""
    processor = context.sequence.processor
    if processor is None:
        return head
    found = processed_candidates(processor, context.path, head.token_ids, head.log_probs)
    return replace(head, token_ids=found[0], log_probs=found[1])


def _with_ancestors(parents: Sequence[int], nodes: Sequence[int]) -> list[int]:
    """Drafted nodes on the paths to `nodes`, ascending."""
    found: set[int] = set()
    for node in nodes:
        while node > 0 and node not in found:
            found.add(node)
            node = parents[node]
    return sorted(found)
