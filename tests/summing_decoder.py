"""A decoder without rounding: a row's logits are drawn from the sum of what the row attends to.

Each token at each position has a number of 64 bits, kept in the KV cache. A row adds up the
numbers in its context's slots, its ancestors' slots and its own; one wrong slot, position or
parent gives other logits altogether.
"""

from types import SimpleNamespace

import numpy as np
import torch

from canopy.acceptance import accept
from canopy.kv_cache.float_cache import KVCache
from canopy.logits_processors.application import apply_edits
from canopy.logits_processors.factory import LogitsProcessors
from canopy.models.step_batch import AuxHiddenStates, StepBatch
from canopy.sampling import SamplingParams
from canopy.tree import DraftTree, ProposalRow

VOCAB_SIZE = 24


def numbers(token_ids: np.ndarray, positions: np.ndarray) -> np.ndarray:
    """int64 [n] the number of each token at its position."""
    mixed = (np.asarray(token_ids, np.uint64) + np.uint64(1)) * np.uint64(0x9E3779B97F4A7C15)
    mixed ^= (np.asarray(positions, np.uint64) + np.uint64(1)) * np.uint64(0xC2B2AE3D27D4EB4F)
    return (mixed * np.uint64(0xFF51AFD7ED558CCD)).view(np.int64)


def logits_of(total: int) -> np.ndarray:
    """float32 [VOCAB_SIZE], a function of the sum (modulo 2**64) alone."""
    rng = np.random.default_rng(total & (2**64 - 1))
    return (2.0 * rng.standard_normal(VOCAB_SIZE)).astype(np.float32)


def logits_after(tokens: list[int]) -> np.ndarray:
    """What the decoder must say after these tokens."""
    with np.errstate(over="ignore"):
        return logits_of(int(2 * numbers(tokens, np.arange(len(tokens))).sum()))


def next_token(tokens: list[int], num_emitted: int, params: SamplingParams) -> int:
    """The next token of plain decoding."""
    tree = DraftTree.of_anchor(tokens[-1])
    logits = logits_after(tokens)[None]
    processor = LogitsProcessors(VOCAB_SIZE).start(params, tokens, num_emitted)
    if processor is not None:
        apply_edits(torch.from_numpy(logits), processor.edits([[]]))
    return accept(tree, [ProposalRow.empty()], logits, params, len(tokens)).bonus


def plain_text(prompt: list[int], params: SamplingParams) -> list[int]:
    """The tokens that plain decoding emits."""
    emitted: list[int] = []
    while len(emitted) < params.max_tokens:
        emitted.append(next_token(prompt + emitted, len(emitted), params))
        if emitted[-1] in params.stop_token_ids and len(emitted) > params.min_tokens:
            break
    return emitted


class SummingDecoder:
    """The interface of `models.decoder.Decoder`; trouble can be injected."""

    def __init__(self) -> None:
        self.config = SimpleNamespace(vocab_size=VOCAB_SIZE, max_position_embeddings=1 << 20)
        self.num_forwards = 0
        self.num_rows = 0  # of the last forward
        self.raise_next = False
        self.spoiled_token = -1  # its rows give NaN

    def new_cache(self, num_blocks: int, block_size: int) -> KVCache:
        cache = KVCache(2, num_blocks, block_size, 1, 1, torch.int64, "cpu")
        cache.keys.fill_(12345)  # a slot that nobody wrote must not pass for zero
        return cache

    def confirm(self) -> None:
        pass

    def forward(
        self, batch: StepBatch, cache: KVCache, aux_hidden_states: AuxHiddenStates | None = None
    ) -> torch.Tensor:
        self.num_forwards += 1
        self.num_rows = len(batch.token_ids)
        own = torch.from_numpy(numbers(batch.token_ids.numpy(), batch.positions.numpy()))
        for layer in range(2):
            rows = own[:, None, None]
            cache.write(layer, batch.slots, rows, rows)
        if self.raise_next:
            self.raise_next = False
            raise RuntimeError("out of memory")
        totals = self._totals(batch, cache)
        logits = torch.from_numpy(np.stack([logits_of(total) for total in totals]))
        logits[batch.token_ids == self.spoiled_token] = torch.nan
        return logits[batch.logit_rows]

    def _totals(self, batch: StepBatch, cache: KVCache) -> list[int]:
        stored = cache.keys[0, :, 0, 0] + cache.values[1, :, 0, 0]
        totals: list[int] = []
        for sequence, length in enumerate(batch.context_lengths.tolist()):
            index = torch.arange(length)
            blocks = batch.block_tables[sequence].long()[index // cache.block_size]
            assert (blocks >= 0).all(), "the context lies outside the block table"
            context = int(stored[blocks * cache.block_size + index % cache.block_size].sum())
            for row in range(*batch.row_starts[sequence : sequence + 2].tolist()):
                parent = int(batch.parent_rows[row])
                before = context if parent < 0 else totals[parent]
                totals.append(before + int(stored[batch.slots[row]]))
        return totals
