"""A DSpark or DFlash head: one pass for all sequences whose context reaches the anchor."""

from collections.abc import Sequence

import numpy as np
import torch

from canopy.config import CacheConfig, DrafterConfig
from canopy.drafter.block.model import NextTokens
from canopy.drafter.draft_heads.context import ContextRows, HeadContexts
from canopy.drafter.draft_heads.distributions import (
    HeadDistributions,
    HeadTables,
    SlotCandidates,
)
from canopy.drafter.source import DraftSequence
from canopy.drafter.threads import torch_threads
from canopy.models.draft_heads import BlockHead
from canopy.models.draft_heads.block import BlockContexts, Slots
from canopy.models.draft_heads.markov import on_host
from canopy.protocol.hidden_states import HiddenStates


class BlockHeadModel:
    """`drafter.block.model.BlockModel` of a published head."""

    def __init__(
        self,
        head: BlockHead,
        cache: CacheConfig,
        drafter: DrafterConfig,
        max_step_tokens: int,
        reads_confidence: bool = True,
    ) -> None:
        """max_step_tokens: positions of context taken up in a step.

        reads_confidence: a confidence head lowers the estimates of the edges that it doubts.
        """
        self.contexts = HeadContexts(cache, reads_next_token=False)
        self._head = head
        self._cache = head.new_cache(cache.num_blocks, cache.block_size)
        self._drafter = drafter
        self._max_step_tokens = max_step_tokens
        self._tables = _tables_of(head, reads_confidence)

    def take_hidden_states(self, hidden_states: dict[int, HiddenStates]) -> None:
        """See `BlockModel`."""
        self.contexts.add(hidden_states)

    def finish(self, sequence_id: int) -> None:
        """See `BlockModel`."""
        self.contexts.finish(sequence_id)

    @torch.inference_mode()
    def distributions(self, sequences: Sequence[DraftSequence]) -> dict[int, NextTokens]:
        """See `BlockModel`."""
        with torch_threads(self._drafter.threads):
            self._take_up(self.contexts.plan(sequences, self._max_step_tokens))
            ready = [s for s in sequences if self.contexts.reaches_anchor(s)]
            if not ready:
                return {}
            temperatures = [s.params.temperature or 1.0 for s in ready]
            slots = self._head.slots(self._pass(ready))
            found = _candidates(slots, temperatures, self._drafter.num_candidates)
        return {
            s.sequence_id: HeadDistributions(own, self._tables, s.token_ids[-1], temperature)
            for s, own, temperature in zip(ready, found, temperatures, strict=True)
        }

    def _take_up(self, plans: Sequence[ContextRows]) -> None:
        """Encode positions that have come."""
        if not plans:
            return
        block_size = self._cache.block_size
        positions = [p.segment.context_length + np.arange(len(p.states)) for p in plans]
        self._head.encode(
            self._sent([plan.states for plan in plans]),
            self._sent(positions),
            self._sent([plan.segment.slots(block_size) for plan in plans]),
            self._cache,
        )
        for plan in plans:
            self.contexts.commit(plan)

    def _pass(self, sequences: Sequence[DraftSequence]) -> torch.Tensor:
        """[B, R, E] hidden states of every block."""
        rows = [self.contexts.slots(sequence.sequence_id) for sequence in sequences]
        lengths = np.array([len(row) for row in rows])
        slots = np.zeros((len(rows), int(lengths.max())), np.int64)
        for padded, row in zip(slots, rows, strict=True):
            padded[: len(row)] = row
        contexts = BlockContexts(self._sent([slots]), self._sent([lengths]))
        anchors = np.array([sequence.token_ids[-1] for sequence in sequences])
        hidden: torch.Tensor = self._head(self._sent([anchors]), contexts, self._cache)
        return hidden

    def _sent(self, parts: Sequence[np.ndarray]) -> torch.Tensor:
        return torch.from_numpy(np.concatenate(parts)).to(self._cache.device)


def _tables_of(head: BlockHead, reads_confidence: bool) -> HeadTables:
    confidence = head.confidence_head if reads_confidence else None
    return HeadTables(
        head.draft_ids.cpu().numpy().astype(np.int32),
        head.markov_head.tables() if head.markov_head else None,
        on_host(confidence.parent_weights) if confidence else None,
    )


def _candidates(
    slots: Slots, temperatures: Sequence[float], num_candidates: int
) -> list[SlotCandidates]:
    """The best of every slot, one entry a sequence. Raises ValueError for non-finite logits."""
    logits = slots.logits.float()
    scale = torch.tensor(temperatures, device=logits.device)[:, None, None]
    best = torch.topk(logits / scale, min(num_candidates, logits.shape[-1]), dim=-1)
    rest = (logits / scale).scatter(-1, best.indices, -torch.inf).logsumexp(-1)
    parts = (best.indices, best.values, rest, slots.codes.float(), slots.confidences.float())
    columns, scores, tails, codes, confidences = (part.cpu().numpy() for part in parts)
    if not all(np.isfinite(part).all() for part in (scores, codes, confidences)):
        raise ValueError("what the head says holds NaN or infinity")
    return [
        SlotCandidates(*own) for own in zip(columns, scores, tails, codes, confidences, strict=True)
    ]
