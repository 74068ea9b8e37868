"""A block drafter: one small pass proposes the next `block_size` tokens of a sequence.

    context   features of the target's tap layers -> one vector a position -> keys, values
    rows      row k = mask vector k (+ the anchor's embedding in row 0) + injected last context
              + the embedding, projected, of what the text would go on with in row k if it copied
              its latest match, + a vector for the length of that match
    head      logits of row k over the draft vocabulary, U_k; the target's own embedding, frozen
    Markov    state(path) = tanh(W1[parent] + W3 row k + W4 state(path without the parent))
              conditional(. | path, k) = softmax(U_k + W2 state(path) + copy bonus)
    copying   the bonus, by row and length of the match, goes to the token that the copy has in
              row k, as long as the parent is the one that it has in the row before

A path runs from the anchor to the parent, which stands in front of row k. Rows see the context
before the anchor and each other. Shapes: B sequences, C context positions,
R rows, E hidden size, H query heads, K KV heads, D head_dim, V draft vocabulary.
"""

from dataclasses import dataclass
from typing import NamedTuple

import torch
import torch.nn.functional as F  # noqa: N812
from torch import nn

from canopy_kernels.ngram.prompt_lookup import LONGEST_COPIED_MATCH


@dataclass(frozen=True)
class BlockDrafterConfig:
    """The shape of a drafter and of the target that it was made for; plain values only."""

    target_vocab_size: int
    target_num_layers: int
    vocabulary: str  # `vocabulary_digest` of the target
    hidden_size: int
    intermediate_size: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    rms_norm_eps: float
    aux_hidden_state_layers: tuple[
        int, ...
    ]  # taps of the target, see models.step.AuxHiddenStates; the last is the latest
    draft_vocab_size: int
    num_layers: int = 2
    block_size: int = 6
    rank: int = 128  # of the Markov head, the size of its states
    window: int = 256  # context positions that rows see

    @property
    def hidden_states_size(self) -> int:
        return self.hidden_size * len(self.aux_hidden_state_layers)


class Context(NamedTuple):
    """What the rows need of computed positions."""

    vectors: torch.Tensor  # [..., E]
    key_values: torch.Tensor  # [..., layers, 2, K, D], keys rotated


class Norm(nn.Module):
    """x / sqrt(mean(x^2) + eps) * weight, in float32."""

    def __init__(self, size: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))
        self.eps = eps

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[..., size] to the same."""
        return normalized(x.float(), self.eps) * self.weight


def normalized(x: torch.Tensor, eps: float) -> torch.Tensor:
    """x over the root of its mean square, along the last dimension."""
    return x * torch.rsqrt(x.pow(2).mean(dim=-1, keepdim=True) + eps)


def split_last(x: torch.Tensor, parts: int, size: int) -> torch.Tensor:
    """[..., parts * size] to [..., parts, size]; unlike unflatten, traced with open sizes."""
    return x.reshape((*x.shape[:-1], parts, size))


def rotate(heads: torch.Tensor, angles: torch.Tensor) -> torch.Tensor:
    """Rope. heads: [..., heads, D]; angles: [..., D / 2]."""
    first, second = heads.chunk(2, dim=-1)
    cosines, sines = angles.cos().unsqueeze(-2), angles.sin().unsqueeze(-2)
    return torch.cat((first * cosines - second * sines, second * cosines + first * sines), dim=-1)


class BlockLayer(nn.Module):
    """Attention over context and rows, then an MLP; dropout on what each adds."""

    def __init__(self, config: BlockDrafterConfig, dropout: float) -> None:
        super().__init__()
        hidden, inner = config.hidden_size, config.intermediate_size
        query, key_value = config.num_heads * config.head_dim, config.num_kv_heads * config.head_dim
        self.head_dim = config.head_dim
        self.group = config.num_heads // config.num_kv_heads
        self.attention_norm = Norm(hidden, config.rms_norm_eps)
        self.q_proj = nn.Linear(hidden, query, bias=False)
        self.k_proj = nn.Linear(hidden, key_value, bias=False)
        self.v_proj = nn.Linear(hidden, key_value, bias=False)
        self.o_proj = nn.Linear(query, hidden, bias=False)
        self.mlp_norm = Norm(hidden, config.rms_norm_eps)
        self.gate_proj = nn.Linear(hidden, inner, bias=False)
        self.up_proj = nn.Linear(hidden, inner, bias=False)
        self.down_proj = nn.Linear(inner, hidden, bias=False)
        self.dropout = nn.Dropout(dropout)

    def key_values(self, normed: torch.Tensor, angles: torch.Tensor) -> torch.Tensor:
        """[..., E] to [..., 2, K, D]."""
        keys = rotate(self._heads(self.k_proj(normed)), angles)
        return torch.stack((keys, self._heads(self.v_proj(normed)).to(keys.dtype)), dim=-3)

    def forward(
        self, rows: torch.Tensor, angles: torch.Tensor, context: torch.Tensor, mask: torch.Tensor
    ) -> torch.Tensor:
        """rows: [B, R, E]; context: [B, C, 2, K, D]; mask: bool [B, R, C + R]; to [B, R, E]."""
        normed = self.attention_norm(rows)
        queries = rotate(self._heads(self.q_proj(normed)), angles)
        both = torch.cat((context.to(queries.dtype), self.key_values(normed, angles)), dim=1)
        both = both.repeat_interleave(self.group, dim=3).permute(2, 0, 3, 1, 4)  # [2, B, H, C+R, D]
        mixed = F.scaled_dot_product_attention(
            queries.transpose(1, 2), both[0], both[1], mask.unsqueeze(1)
        )
        rows = rows + self.dropout(self.o_proj(mixed.transpose(1, 2).flatten(2)))
        normed = self.mlp_norm(rows)
        inner = F.silu(self.gate_proj(normed)) * self.up_proj(normed)
        return rows + self.dropout(self.down_proj(inner))

    def _heads(self, x: torch.Tensor) -> torch.Tensor:
        return split_last(x, x.shape[-1] // self.head_dim, self.head_dim)


class BlockDrafter(nn.Module):
    """The network. The target's embedding is lent to it and never part of its state."""

    frequencies: torch.Tensor  # float32 [D / 2]
    aux_layer_scales: torch.Tensor  # float32 [taps]
    draft_ids: torch.Tensor  # int64 [V], ascending target ids of the draft vocabulary
    embedding: torch.Tensor  # [target vocabulary, E]
    copy_bonus: torch.Tensor  # float32 [block, LONGEST_COPIED_MATCH + 1], 0 without a match

    def __init__(
        self, config: BlockDrafterConfig, embedding: torch.Tensor, dropout: float = 0.0
    ) -> None:
        super().__init__()
        size = config.hidden_size
        self.config = config
        self.register_buffer("embedding", embedding, persistent=False)
        self.register_buffer("frequencies", torch.zeros(config.head_dim // 2))
        self.register_buffer("aux_layer_scales", torch.ones(len(config.aux_hidden_state_layers)))
        self.register_buffer("draft_ids", torch.arange(config.draft_vocab_size))
        self.register_buffer("copy_bonus", torch.zeros(config.block_size, LONGEST_COPIED_MATCH + 1))
        self.fuse = nn.Linear(config.hidden_states_size, size, bias=False)
        self.context_norm = Norm(size, config.rms_norm_eps)
        self.inject = nn.Linear(size, size, bias=False)
        self.masks = nn.Parameter(torch.zeros(config.block_size, size))
        self.copy = nn.Linear(size, size, bias=False)
        self.match_lengths = nn.Embedding(LONGEST_COPIED_MATCH + 1, size)
        self.layers = nn.ModuleList(BlockLayer(config, dropout) for _ in range(config.num_layers))
        self.norm = Norm(size, config.rms_norm_eps)
        self.adapter = nn.Linear(size, size, bias=False)  # in front of the frozen head
        self.markov_in = nn.Linear(size, config.rank, bias=False)  # W1, of the parent's embedding
        self.markov_out = nn.Linear(config.rank, config.draft_vocab_size, bias=False)  # W2
        self.markov_row = nn.Linear(size, config.rank, bias=False)  # W3, of the decoded row
        self.markov_step = nn.Linear(config.rank, config.rank, bias=False)  # W4
        self.dropout = nn.Dropout(dropout)

    def encode(self, hidden_states: torch.Tensor, positions: torch.Tensor) -> Context:
        """Take positions up. features: [..., taps * E]; positions: int [...]."""
        size = self.config.hidden_size
        aux_hidden_states = split_last(
            hidden_states.float(), len(self.config.aux_hidden_state_layers), size
        )
        scaled = (aux_hidden_states / self.aux_layer_scales.unsqueeze(-1)).flatten(-2)
        vectors = self.dropout(self.context_norm(self.fuse(scaled)))
        angles = self._angles(positions)
        parts = [layer.key_values(vectors, angles) for layer in self._block_layers()]
        return Context(vectors, torch.stack(parts, dim=-4))

    def start_rows(
        self,
        anchors: torch.Tensor,
        last: torch.Tensor,
        copied: torch.Tensor,
        match_lengths: torch.Tensor,
    ) -> torch.Tensor:
        """What the layers start from, [..., block, E].

        anchors, last: [..., E] embeddings and the context vectors before them. copied: [..., block,
        E] embeddings, read where match_lengths, int [...], is not 0.
        """
        masks = self.masks.expand(*anchors.shape[:-1], -1, -1)
        rows = masks + (self.inject(last) + self.match_lengths(match_lengths)).unsqueeze(-2)
        is_match = (match_lengths > 0).unsqueeze(-1).unsqueeze(-1)
        rows = rows + self.copy(copied.float()) * is_match
        first = rows[..., :1, :] + anchors.float().unsqueeze(-2)
        return torch.cat((first, rows[..., 1:, :]), dim=-2)

    def decode(
        self,
        rows: torch.Tensor,
        positions: torch.Tensor,
        key_values: torch.Tensor,
        mask: torch.Tensor,
    ) -> torch.Tensor:
        """Run the layers; what the head reads, [B, R, E].

        positions: int [B, R]. key_values: [B, C, layers, 2, K, D]. mask: bool [B, R, C + R].
        """
        angles = self._angles(positions)
        for index, layer in enumerate(self._block_layers()):
            rows = layer(rows, angles, key_values[:, :, index], mask)
        return self.adapter(self.norm(rows))

    def head(self) -> torch.Tensor:
        """[V, E] rows of the target's embedding."""
        return self.embedding[self.draft_ids].float()

    def markov_code(self, parents: torch.Tensor) -> torch.Tensor:
        """W1: [..., rank] of the parents' embeddings, [..., E]."""
        return self.markov_in(normalized(parents.float(), self.config.rms_norm_eps))

    def path_states(self, rows: torch.Tensor, parents: torch.Tensor) -> torch.Tensor:
        """What the Markov head keeps of one path through the block, [..., block, rank].

        rows: [..., block, E] decoded. parents: [..., block, E] embeddings; the anchor's first.
        """
        codes = (self.markov_code(parents) + self.markov_row(rows)).unbind(dim=-2)
        states = [codes[0].tanh()]
        for code in codes[1:]:
            states.append((code + self.markov_step(states[-1])).tanh())
        return torch.stack(states, dim=-2)

    def copy_columns(
        self, copied_ids: torch.Tensor, parent_ids: torch.Tensor, match_lengths: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Where the bonus of each row goes, int64 [..., block], and whether it has one, bool.

        copied_ids, parent_ids: int64 [..., block] target ids. match_lengths: int64 [...].
        """
        columns = torch.searchsorted(self.draft_ids, copied_ids).clamp(max=len(self.draft_ids) - 1)
        follows = torch.ones_like(columns, dtype=torch.bool)
        follows[..., 1:] = parent_ids[..., 1:] == copied_ids[..., :-1]
        is_known = self.draft_ids[columns] == copied_ids
        return columns, is_known & follows & (match_lengths > 0).unsqueeze(-1)

    def _angles(self, positions: torch.Tensor) -> torch.Tensor:
        return positions.unsqueeze(-1).float() * self.frequencies

    def _block_layers(self) -> list[BlockLayer]:
        return [layer for layer in self.layers if isinstance(layer, BlockLayer)]
