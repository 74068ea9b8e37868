"""An EAGLE-3 head as source: all trees grow together, one pass of the head a level.

    level 0   positions whose hidden states have come, up to the one before the anchor
    level d   the open nodes of depth d with their ancestors; a node reads its parent's output

Under the policy `topn` that is the tree of EAGLE-2 and EAGLE-3: `max_branch` children of a node,
`max_branch` nodes of a level expanded, and the `node_budget` likeliest of all kept.
"""

from collections.abc import Sequence

import numpy as np
import torch

from canopy.config import CacheConfig, DrafterConfig
from canopy.drafter.draft_heads.context import HeadContexts
from canopy.drafter.growth.levels import Level, expand_levels
from canopy.drafter.growth.levelwise import LevelwiseProposal
from canopy.drafter.source import DraftSequence, DraftTask
from canopy.drafter.threads import torch_threads
from canopy.models.draft_heads import Eagle3Head
from canopy.models.step_batch import Segment, assemble_step
from canopy.protocol.hidden_states import HiddenStates
from canopy.tree import Proposal


class Eagle3Source:
    """Proposes what the head finds probable.

    A sequence whose context does not reach the anchor yet, or that finds no KV block, brings its
    anchor alone.
    """

    def __init__(
        self, head: Eagle3Head, cache: CacheConfig, drafter: DrafterConfig, max_step_tokens: int
    ) -> None:
        """max_step_tokens: positions of context taken up in a step."""
        self.num_failures = 0
        self.contexts = HeadContexts(cache, reads_next_token=True)
        self._head = head
        self._cache = head.new_cache(cache.num_blocks, cache.block_size)
        self._drafter = drafter
        self._max_step_tokens = max_step_tokens
        self._draft_ids = head.draft_ids.cpu().numpy().astype(np.int32)
        self._outputs: dict[int, torch.Tensor] = {}  # [E] of the position before each anchor

    def take_hidden_states(self, hidden_states: dict[int, HiddenStates]) -> None:
        """Positions that the target has computed, by sequence."""
        self.contexts.add(hidden_states)

    @torch.inference_mode()
    def propose(self, tasks: Sequence[DraftTask]) -> list[Proposal]:
        """One tree per task. Raises ValueError when the head's logits are not finite."""
        growths = [LevelwiseProposal(task) for task in tasks]
        ready = [growth for growth in growths if growth.frontier()]
        with torch_threads(self._drafter.threads):
            self._catch_up([growth.task.sequence for growth in ready])
            self._grow([growth for growth in ready if self._can_grow(growth)])
        return [growth.proposal() for growth in growths]

    def finish(self, sequence_id: int) -> None:
        """Give the sequence's blocks back."""
        self.contexts.finish(sequence_id)
        self._outputs.pop(sequence_id, None)

    def _catch_up(self, sequences: Sequence[DraftSequence]) -> None:
        """Take up the positions that have come."""
        plans = self.contexts.plan(sequences, self._max_step_tokens)
        if not plans:
            return
        states = torch.from_numpy(np.concatenate([plan.states for plan in plans]))
        features = self._head.fuse(states.to(self._cache.device))
        outputs = self._forward([plan.segment for plan in plans], features)
        lasts = np.cumsum([len(plan.states) for plan in plans]) - 1
        for plan, last in zip(plans, lasts.tolist(), strict=True):
            self.contexts.commit(plan)
            self._outputs[plan.sequence_id] = outputs[last]

    def _can_grow(self, growth: LevelwiseProposal) -> bool:
        sequence = growth.task.sequence
        has_context = self.contexts.reaches_anchor(sequence)
        return has_context and self.contexts.reserve(sequence, growth.task.settings.node_budget)

    def _grow(self, growths: list[LevelwiseProposal]) -> None:
        """Expand level after level until every policy has what it wants."""
        if not growths:
            return
        anchors = [(growth, 0) for growth in growths]
        outputs = [self._outputs[growth.task.sequence.sequence_id] for growth in growths]
        known = _NodeOutputs(anchors, torch.stack(outputs))
        self._expand(growths, known.of(anchors))
        while growths := [growth for growth in growths if growth.frontier()]:
            levels = [Level.of(growth) for growth in growths]
            pairs = zip(growths, levels, strict=True)
            nodes = [(growth, node) for growth, level in pairs for node in level.nodes]
            parents = [(growth, growth.parents[node]) for growth, node in nodes]
            features = self._head.feedback(known.of(parents))
            known.add(nodes, self._forward(self._segments(growths, levels), features))
            frontiers = [(growth, node) for growth in growths for node in growth.frontier()]
            self._expand(growths, known.of(frontiers))

    def _expand(self, growths: Sequence[LevelwiseProposal], outputs: torch.Tensor) -> None:
        expand_levels(growths, self._head.logits(outputs), self._drafter, self._draft_ids)

    def _segments(
        self, growths: Sequence[LevelwiseProposal], levels: Sequence[Level]
    ) -> list[Segment]:
        segments = []
        for growth, level in zip(growths, levels, strict=True):
            sequence_id = growth.task.sequence.sequence_id
            table = self.contexts.blocks.block_table(sequence_id)
            segments.append(level.segment(growth, self.contexts.length(sequence_id), table))
        return segments

    def _forward(self, segments: Sequence[Segment], features: torch.Tensor) -> torch.Tensor:
        """[T, E] outputs of the rows of all segments."""
        batch = assemble_step(segments, self._cache.block_size, str(self._cache.device))
        outputs: torch.Tensor = self._head(batch, features, self._cache)
        return outputs


class _NodeOutputs:
    """What the head gave at the nodes of growing trees."""

    def __init__(
        self, nodes: Sequence[tuple[LevelwiseProposal, int]], outputs: torch.Tensor
    ) -> None:
        self._rows = {node: row for row, node in enumerate(nodes)}
        self._outputs = outputs  # [n, E]

    def add(self, nodes: Sequence[tuple[LevelwiseProposal, int]], outputs: torch.Tensor) -> None:
        """outputs: [n, E], of the nodes in order."""
        first = len(self._outputs)
        self._rows.update({node: first + index for index, node in enumerate(nodes)})
        self._outputs = torch.cat((self._outputs, outputs))

    def of(self, nodes: Sequence[tuple[LevelwiseProposal, int]]) -> torch.Tensor:
        """[n, E] of the nodes in order."""
        rows = torch.tensor([self._rows[node] for node in nodes], device=self._outputs.device)
        return self._outputs[rows]
