"""A small language model as drafter: all trees grow together, one forward a level.

    level 0   committed tokens that the drafter has not seen yet, the anchor last
    level d   the open nodes of depth d with their ancestors

The committed tokens stay in a paged KV cache of the drafter's own. Tree rows lie behind them as
scratch: a level computes the ancestors of its nodes again, since a step sees the committed
context and its own rows only.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from canopy.config import CacheConfig, Deployment, DrafterConfig
from canopy.drafter.growth.levels import Level, expand_levels
from canopy.drafter.growth.levelwise import LevelwiseProposal
from canopy.drafter.source import DraftSequence, DraftTask
from canopy.drafter.threads import torch_threads
from canopy.dtypes import drafter_dtype
from canopy.errors import InvalidDeployment
from canopy.kv_cache.block_manager import BlockManager
from canopy.model_store.folders import model_folder, small_drafter_folder
from canopy.model_store.vocabulary import require_same_vocabulary
from canopy.models.decoder import Decoder, load_decoder
from canopy.models.step_batch import Segment, assemble_step
from canopy.tree import Proposal


def make_autoregressive_source(deployment: Deployment) -> "AutoregressiveSource":
    """The drafter model of a deployment, with the target's device and cache size.

    Raises InvalidDeployment for an unusable folder and for a vocabulary unlike the target's.
    """
    target, drafter = deployment.target, deployment.drafter
    folder = small_drafter_folder(drafter.model)
    vocab_size = require_same_vocabulary(model_folder(target.model), folder)
    with torch_threads(drafter.threads):
        decoder = load_decoder(folder, drafter_dtype(drafter.dtype, target.dtype), target.device)
    if decoder.config.vocab_size < vocab_size:
        raise InvalidDeployment(
            f"{folder.name} has {decoder.config.vocab_size} embeddings for {vocab_size} token ids"
        )
    return AutoregressiveSource(
        decoder, vocab_size, deployment.cache, drafter, deployment.limits.max_step_tokens
    )


@dataclass(frozen=True)
class CatchUp:
    """Committed tokens of one sequence to compute in this step."""

    sequence: DraftSequence
    first: int  # index of the first token computed; those before it are in the cache
    num_rows: int

    @property
    def end(self) -> int:
        return self.first + self.num_rows

    @property
    def reaches_anchor(self) -> bool:
        return self.end == len(self.sequence.token_ids)


class AutoregressiveSource:
    """Proposes what the drafter model finds probable.

    A sequence that still lacks context, that finds no KV block or that leaves the drafter's
    context length brings its anchor alone.
    """

    def __init__(
        self,
        decoder: Decoder,
        vocab_size: int,
        cache: CacheConfig,
        drafter: DrafterConfig,
        max_step_tokens: int,
    ) -> None:
        """vocab_size: tokens that the target knows. max_step_tokens: context caught up a step."""
        self.blocks = BlockManager(cache.num_blocks, cache.block_size, cache.prefix_reuse)
        self._decoder = decoder
        self._cache = decoder.new_cache(cache.num_blocks, cache.block_size)
        self._vocab_size = vocab_size
        self._drafter = drafter
        self._max_step_tokens = max_step_tokens
        self._known: set[int] = set()

    @torch.inference_mode()
    def propose(self, tasks: Sequence[DraftTask]) -> list[Proposal]:
        """One tree per task. Raises ValueError when the drafter's logits are not finite."""
        growths = [LevelwiseProposal(task) for task in tasks]
        ready = self._catch_up([growth for growth in growths if growth.frontier()])
        while ready := [growth for growth in ready if growth.frontier()]:
            self._expand(ready, self._forward([self._level_segment(growth) for growth in ready]))
        return [growth.proposal() for growth in growths]

    def finish(self, sequence_id: int) -> None:
        """Give the sequence's blocks back."""
        self.blocks.finish(sequence_id)
        self._known.discard(sequence_id)

    # Context

    def _catch_up(self, growths: Sequence[LevelwiseProposal]) -> list[LevelwiseProposal]:
        """Compute missing context and open the first level; the growths that have their context."""
        plans = self._plan(growths)
        if not plans:
            return []
        logits = self._forward([self._context_segment(plan) for plan in plans.values()])
        for plan in plans.values():
            committed = self.blocks.num_committed(plan.sequence.sequence_id)
            self.blocks.commit(
                plan.sequence.sequence_id, plan.sequence.token_ids[committed : plan.end]
            )
        ready = [growth for growth, plan in plans.items() if plan.reaches_anchor]
        if ready:
            self._expand(ready, logits)
        return ready

    def _plan(self, growths: Sequence[LevelwiseProposal]) -> dict[LevelwiseProposal, CatchUp]:
        """Who computes how much context. Short gaps go first: a long prompt delays no other."""
        in_reach = [growth for growth in growths if self._is_in_reach(growth)]
        plans, left = {}, self._max_step_tokens
        for growth in sorted(in_reach, key=self._num_missing):
            num_rows = min(self._num_missing(growth), left)
            if num_rows > 0 and self._reserve(growth, num_rows):
                plans[growth] = CatchUp(growth.task.sequence, self._first(growth), num_rows)
                left -= num_rows
        return plans

    def _is_in_reach(self, growth: LevelwiseProposal) -> bool:
        end = len(growth.task.sequence.token_ids) + growth.task.settings.max_level
        return end <= self._decoder.config.max_position_embeddings

    def _first(self, growth: LevelwiseProposal) -> int:
        """Index of the first token to compute; the anchor always is, for its logits."""
        sequence = growth.task.sequence
        if sequence.sequence_id not in self._known:
            self.blocks.start(sequence.sequence_id, sequence.token_ids)
            self._known.add(sequence.sequence_id)
        return min(self.blocks.num_committed(sequence.sequence_id), len(sequence.token_ids) - 1)

    def _num_missing(self, growth: LevelwiseProposal) -> int:
        return len(growth.task.sequence.token_ids) - self._first(growth)

    def _reserve(self, growth: LevelwiseProposal, num_rows: int) -> bool:
        """Blocks for context and, where that is complete, for the tree behind it."""
        is_complete = num_rows == self._num_missing(growth)
        scratch = growth.task.settings.node_budget if is_complete else 0
        end = self._first(growth) + num_rows
        return self.blocks.reserve(growth.task.sequence.sequence_id, end + scratch)

    def _context_segment(self, plan: CatchUp) -> Segment:
        return Segment(
            context_length=plan.first,
            block_table=self.blocks.block_table(plan.sequence.sequence_id),
            token_ids=np.array(plan.sequence.token_ids[plan.first : plan.end]),
            parents=np.arange(-1, plan.num_rows - 1),
            logit_rows=np.arange(plan.num_rows)[-1:] if plan.reaches_anchor else np.zeros(0, int),
        )

    # Levels

    def _level_segment(self, growth: LevelwiseProposal) -> Segment:
        sequence = growth.task.sequence
        table = self.blocks.block_table(sequence.sequence_id)
        return Level.of(growth).segment(growth, len(sequence.token_ids), table)

    def _expand(self, growths: Sequence[LevelwiseProposal], logits: torch.Tensor) -> None:
        """Open the next level of every growth; the logits' rows are their frontiers, in order."""
        expand_levels(growths, logits[:, : self._vocab_size], self._drafter)

    def _forward(self, segments: Sequence[Segment]) -> torch.Tensor:
        device = str(self._cache.device)
        with torch_threads(self._drafter.threads):
            batch = assemble_step(segments, self.blocks.block_size, device)
            return self._decoder.forward(batch, self._cache)
