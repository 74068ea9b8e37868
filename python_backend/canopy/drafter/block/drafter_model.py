"""Canopy's own block drafter: one pass for all sequences whose context reaches the anchor.

HiddenStates of computed positions become keys and values of the drafter's own context, one window a
sequence.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from canopy.config import DrafterConfig
from canopy.drafter.block.context import BlockContext
from canopy.drafter.block.distributions import BlockDistributions, Copied, MarkovHead
from canopy.drafter.block.markov_head import markov_head
from canopy.drafter.block.model import NextTokens
from canopy.drafter.block.prefix_cache import PrefixBlocks
from canopy.drafter.source import DraftSequence
from canopy.models.block_drafter.checkpoint import load_drafter
from canopy.models.block_drafter.network import BlockDrafterConfig
from canopy.models.block_drafter.runner import BlockInputs, BlockRows, BlockRunner
from canopy.models.block_drafter.runner_choice import runner_for
from canopy.protocol.hidden_states import HiddenStates
from canopy_kernels.ngram.prompt_lookup import COPY_WINDOW, LONGEST_COPIED_MATCH, prompt_lookup

_COPIED_FROM = COPY_WINDOW + LONGEST_COPIED_MATCH  # last tokens


@dataclass(frozen=True)
class LoadedBlockDrafter:
    """Everything that a pass and its distributions need."""

    config: BlockDrafterConfig
    runner: BlockRunner
    embedding: np.ndarray  # float16 [target vocabulary, E]
    head: MarkovHead


def load_block_drafter(
    folder: Path, target_folder: Path, device: str, drafter: DrafterConfig
) -> LoadedBlockDrafter:
    """Raises InvalidDeployment for what is no drafter of this target."""
    network = load_drafter(folder, target_folder)
    return LoadedBlockDrafter(
        network.config,
        runner_for(network, folder, device, drafter.threads),
        network.embedding.half().numpy(),
        markov_head(network, is_on=drafter.source != "block"),
    )


class BlockDrafterModel:
    """`BlockModel` of a loaded drafter."""

    def __init__(self, loaded: LoadedBlockDrafter, num_candidates: int) -> None:
        """num_candidates: tokens of its vocabulary that are scored at each node."""
        self._loaded = loaded
        self._num_candidates = num_candidates
        self._contexts: dict[int, BlockContext] = {}
        self._prefixes = PrefixBlocks()

    def take_hidden_states(self, hidden_states: dict[int, HiddenStates]) -> None:
        """See `BlockModel`."""
        for sequence_id, part in hidden_states.items():
            window = self._loaded.config.window
            self._contexts.setdefault(sequence_id, BlockContext(window)).add(part)

    def finish(self, sequence_id: int) -> None:
        """See `BlockModel`."""
        self._contexts.pop(sequence_id, None)

    def distributions(self, sequences: Sequence[DraftSequence]) -> dict[int, NextTokens]:
        """See `BlockModel`."""
        self._encode(sequences)
        ready = [s for s in sequences if self._reaches_anchor(s)]
        if not ready:
            return {}
        copies = [self._copied(sequence) for sequence in ready]
        rows = self._loaded.runner.propose(self._inputs(ready, copies))
        if not (np.isfinite(rows.logits).all() and np.isfinite(rows.codes).all()):
            raise ValueError("what the drafter says holds NaN or infinity")
        return {
            sequence.sequence_id: BlockDistributions(
                BlockRows(logits, codes),
                self._loaded.head,
                sequence.token_ids[-1],
                self._num_candidates,
                sequence.params.temperature or 1.0,
                copied,
            )
            for sequence, logits, codes, copied in zip(ready, *rows, copies, strict=True)
        }

    def _encode(self, sequences: Sequence[DraftSequence]) -> None:
        """Take up all hidden states of the sequences that have come, in one call."""
        waiting, parts = list[tuple[BlockContext, list[int]]](), list[HiddenStates]()
        for sequence in sequences:
            context = self._contexts.get(sequence.sequence_id)
            if context and context.pending:
                context.recall(self._prefixes, sequence.token_ids)
                waiting.append((context, sequence.token_ids))
                parts.append(context.pending)
        if not parts:
            return
        positions = np.concatenate([np.arange(part.start, part.end) for part in parts])
        states = np.concatenate([part.states for part in parts])
        vectors, key_values = self._loaded.runner.encode(states, positions.astype(np.int64))
        first = 0
        for (context, token_ids), part in zip(waiting, parts, strict=True):
            end = first + len(part.states)
            context.settle(vectors[end - 1], key_values[first:end])
            context.remember(self._prefixes, token_ids, part.start)
            first = end

    def _reaches_anchor(self, sequence: DraftSequence) -> bool:
        context = self._contexts.get(sequence.sequence_id)
        return context is not None and context.end == len(sequence.token_ids) - 1 > 0

    def _copied(self, sequence: DraftSequence) -> Copied:
        text = np.array(sequence.token_ids[-_COPIED_FROM:], np.int64)
        return Copied(*prompt_lookup(text, self._loaded.config.block_size))

    def _inputs(self, sequences: Sequence[DraftSequence], copies: Sequence[Copied]) -> BlockInputs:
        contexts = [self._contexts[sequence.sequence_id] for sequence in sequences]
        lengths = np.array([len(context.key_values) for context in contexts], np.int64)
        shape = (len(contexts), int(lengths.max()), *contexts[0].key_values.shape[1:])
        key_values = np.zeros(shape, np.float32)
        for padded, context in zip(key_values, contexts, strict=True):
            padded[: len(context.key_values)] = context.key_values
        anchors = [sequence.token_ids[-1] for sequence in sequences]
        embedding = self._loaded.embedding
        return BlockInputs(
            embedding[anchors].astype(np.float32),
            np.stack([context.last for context in contexts]).astype(np.float32),
            np.array([context.end for context in contexts], np.int64),
            key_values,
            lengths,
            embedding[np.stack([copied.token_ids for copied in copies])].astype(np.float32),
            np.array([copied.length for copied in copies], np.int64),
        )
