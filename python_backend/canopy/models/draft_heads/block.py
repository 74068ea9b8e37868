"""DSpark and DFlash: one pass proposes a whole block of tokens behind the anchor.

    context   c_t = hidden_norm(fc(states of the target at t)), t < s; never updated
    rows      the anchor's embedding at position s, then the mask token's at s + 1, ...
    layer     queries from the rows; keys and values from context and rows, the rows seeing each
              other in both directions unless the layer has a window
    DSpark    slot j predicts position s + 1 + j; a Markov head adds what its parent says, and a
              confidence head estimates how much of the target's distribution its own covers
    DFlash    slot j predicts position s + j; slot 0 is unused

The context lies in a paged cache; the rows of a block leave nothing behind.
Shapes: B sequences, C context positions, R rows, E hidden size, K KV heads, D head_dim.
"""

from dataclasses import dataclass
from typing import NamedTuple

import torch
import torch.nn.functional as F  # noqa: N812
from torch import nn

from canopy.kv_cache.float_cache import KVCache
from canopy.models.draft_heads.config import BlockHeadConfig
from canopy.models.draft_heads.layers import HeadLayer, Rope, Rotation
from canopy.models.draft_heads.markov import MarkovHead


@dataclass(frozen=True)
class BlockContexts:
    """Where the context of each sequence lies; the anchor stands right behind it."""

    slots: torch.Tensor  # int64 [B, C], padded with any slot
    lengths: torch.Tensor  # int64 [B]


class Slots(NamedTuple):
    """What a pass says of the slots that predict, S of them."""

    logits: torch.Tensor  # [B, S, Vd], before a Markov head
    codes: torch.Tensor  # [B, S, code], see MarkovHead.row_codes
    confidences: torch.Tensor  # [B, S] log-odds without the parent's part; [B, 0] without a head


class ConfidenceHead(nn.Module):
    """Reads a slot's hidden state and, where the head was trained so, the code of its parent."""

    def __init__(self, config: BlockHeadConfig) -> None:
        super().__init__()
        self.hidden_size = config.backbone.hidden_size
        parent = config.markov_rank if config.confidence_reads_parent else 0
        self.proj = nn.Linear(self.hidden_size + parent, 1)

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        """The hidden state's part of the log-odds: [..., E] to [...]."""
        weight = self.proj.weight[:, : self.hidden_size]
        return F.linear(hidden, weight, self.proj.bias).squeeze(-1)

    @property
    def parent_weights(self) -> torch.Tensor:
        """[rank] for the code of the parent, or none."""
        return self.proj.weight[0, self.hidden_size :]


class BlockHead(nn.Module):
    """The network; its state has the names of the DeepSpec layout."""

    draft_ids: torch.Tensor  # int64 [Vd] target ids of the draft vocabulary

    def __init__(self, config: BlockHeadConfig) -> None:
        super().__init__()
        layer = config.backbone
        hidden, eps = layer.hidden_size, layer.rms_norm_eps
        self.config = config
        self.embed_tokens = nn.Embedding(layer.vocab_size, hidden)
        self.fc = nn.Linear(config.hidden_states_size, hidden, bias=False)
        self.hidden_norm = nn.RMSNorm(hidden, eps)
        self.layers = nn.ModuleList(HeadLayer(layer) for _ in range(layer.num_layers))
        self.norm = nn.RMSNorm(hidden, eps)
        self.lm_head = nn.Linear(hidden, config.draft_vocab_size, bias=False)
        self.markov_head = MarkovHead(config) if config.markov else None
        self.confidence_head = ConfidenceHead(config) if config.has_confidence else None
        self.rope = Rope(layer)
        self.register_buffer("draft_ids", torch.arange(config.draft_vocab_size), persistent=False)

    def new_cache(self, num_blocks: int, block_size: int) -> KVCache:
        """An empty cache for the context."""
        layer, weight = self.config.backbone, self.norm.weight
        shape = layer.num_layers, num_blocks, block_size, layer.num_kv_heads, layer.head_dim
        return KVCache(*shape, weight.dtype, str(weight.device))

    def encode(
        self, states: torch.Tensor, positions: torch.Tensor, slots: torch.Tensor, cache: KVCache
    ) -> None:
        """Take N positions up into the context.

        states: [N, states * E] of the target; positions, slots: int64 [N].
        """
        rows = self.hidden_norm(self.fc(states.to(self.fc.weight.dtype)))
        rotation = self.rope(positions, rows.dtype)
        for index, layer in enumerate(self._head_layers()):
            attention = layer.self_attn
            cache.write(index, slots, attention.keys(rows, rotation), attention.values(rows))

    def forward(
        self, anchor_ids: torch.Tensor, contexts: BlockContexts, cache: KVCache
    ) -> torch.Tensor:
        """One pass for B sequences; normed hidden states of all slots, [B, R, E].

        anchor_ids: int64 [B].
        """
        steps = torch.arange(self.config.block_size, device=anchor_ids.device)
        positions = contexts.lengths.unsqueeze(1) + steps
        token_ids = torch.where(steps == 0, anchor_ids.unsqueeze(1), self.config.mask_token_id)
        rows = self.embed_tokens(token_ids)
        rotation = self.rope(positions, rows.dtype)
        masks = {window: self._mask(contexts, window) for window in set(self.config.windows)}
        for index, layer in enumerate(self._head_layers()):
            keys, values = cache.keys[index][contexts.slots], cache.values[index][contexts.slots]
            mask = masks[self.config.windows[index]]
            rows = _layer(layer, rows, rotation, (keys, values), mask)
        normed: torch.Tensor = self.norm(rows)
        return normed

    def slots(self, hidden: torch.Tensor) -> Slots:
        """What the heads say of the hidden states of all slots, [B, R, E]."""
        hidden = hidden[:, self.config.first_slot :]
        codes = self.markov_head.row_codes(hidden) if self.markov_head else hidden[..., :0]
        confidence = self.confidence_head
        return Slots(
            self.lm_head(hidden), codes, confidence(hidden) if confidence else hidden[:, :0, 0]
        )

    def _mask(self, contexts: BlockContexts, window: int) -> torch.Tensor:
        """bool [B, R, C + R]: which context positions and which rows a row sees."""
        device, size = contexts.slots.device, self.config.block_size
        positions = torch.arange(contexts.slots.shape[1], device=device)
        rows = torch.arange(size, device=device)
        ends = contexts.lengths[:, None, None]
        seen = (positions < ends).expand(-1, size, -1)
        block = torch.ones(size, size, dtype=torch.bool, device=device)
        if window:
            last = ends + rows[:, None] + 1 if self.config.moves_window else ends
            seen = seen & (positions >= last - window)
        if window and self.config.is_window_causal:
            block = block.tril()
        return torch.cat((seen, block.expand(len(seen), -1, -1)), dim=2)

    def _head_layers(self) -> list[HeadLayer]:
        return [layer for layer in self.layers if isinstance(layer, HeadLayer)]


def _layer(
    layer: HeadLayer,
    rows: torch.Tensor,
    rotation: Rotation,
    context: tuple[torch.Tensor, torch.Tensor],
    mask: torch.Tensor,
) -> torch.Tensor:
    """rows: [B, R, E] to the same. context: keys and values, [B, C, K, D] each."""
    attention, normed = layer.self_attn, layer.input_layernorm(rows)
    keys = torch.cat((context[0], attention.keys(normed, rotation)), dim=1)
    values = torch.cat((context[1], attention.values(normed)), dim=1)
    mixed = F.scaled_dot_product_attention(
        attention.queries(normed, rotation).transpose(1, 2),
        keys.transpose(1, 2),
        values.transpose(1, 2),
        mask.unsqueeze(1),
        enable_gqa=True,
    )
    return layer.finish(rows, mixed.transpose(1, 2))
