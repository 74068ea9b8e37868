"""The parts of a decoder of the Llama family, each a callable on rows; inference only.

    hidden -> hidden + attention(norm(hidden)) -> ... + mlp(norm(...))

Shapes: T rows of a step, E hidden size, H query heads, K key heads = value heads, D head_dim.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F  # noqa: N812

from canopy.kv_cache.float_cache import KVCache
from canopy.models.config import ModelConfig
from canopy.models.rope_frequencies import rope_frequencies
from canopy_kernels.attention.paged_rows import PagedRows

RowFn = Callable[[torch.Tensor], torch.Tensor]  # of every row another, whose width may differ


@dataclass(frozen=True)
class StepContext:
    """What all layers of one forward share."""

    cosines: torch.Tensor  # [T, 1, D]
    sines: torch.Tensor  # [T, 1, D]
    rows: PagedRows
    cache: KVCache


@dataclass(frozen=True)
class Embedding:
    """The row of each token."""

    weight: torch.Tensor  # [V, E]

    def __call__(self, token_ids: torch.Tensor) -> torch.Tensor:
        """int64 [T] to [T, E]."""
        return F.embedding(token_ids, self.weight)


@dataclass(frozen=True)
class Linear:
    """rows @ weight.T + bias."""

    weight: torch.Tensor  # [out, in]
    bias: torch.Tensor | None = None  # [out]

    def __call__(self, rows: torch.Tensor) -> torch.Tensor:
        """[T, in] to [T, out]."""
        return F.linear(rows, self.weight, self.bias)


@dataclass(frozen=True)
class RMSNorm:
    """x / sqrt(mean(x^2) + eps) * weight, over the last dimension of the weight."""

    weight: torch.Tensor  # [E], or [heads, D]
    eps: float

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """The same shape and dtype as x."""
        return F.rms_norm(x, self.weight.shape[-1:], eps=self.eps) * self.weight


@dataclass(frozen=True)
class Attention:
    """Grouped-query attention of a step's rows, over one layer of the paged cache."""

    layer: int
    qkv: Linear  # [(H + 2K) * D, E]: queries, keys, values
    qk_norm: RMSNorm | None  # weight [H + K, D]
    output: RowFn
    num_heads: int
    num_kv_heads: int

    def __call__(self, hidden: torch.Tensor, context: StepContext) -> torch.Tensor:
        """[T, E] to [T, E]; writes the rows' keys and values into the cache."""
        num_rotated = self.num_heads + self.num_kv_heads
        num_all = num_rotated + self.num_kv_heads
        heads = self.qkv(hidden).view(len(hidden), num_all, -1)
        rotated, values = heads[:, :num_rotated], heads[:, num_rotated:]
        if self.qk_norm is not None:
            rotated = self.qk_norm(rotated)
        rotated = rotate(rotated, context.cosines, context.sines)
        query, keys = rotated[:, : self.num_heads], rotated[:, self.num_heads :]
        cache, rows = context.cache, context.rows
        cache.write(self.layer, rows.slots, keys, values)
        mixed = cache.attend(self.layer, query.contiguous(), rows, query.shape[2] ** -0.5)
        return self.output(mixed.flatten(1))


@dataclass(frozen=True)
class MLP:
    """down(silu(gate(x)) * up(x))."""

    gate_up: Linear  # [2 * inner, E]
    down: RowFn  # [T, inner] to [T, E]

    def __call__(self, hidden: torch.Tensor) -> torch.Tensor:
        """[T, E] to [T, E]."""
        gate, up = self.gate_up(hidden).chunk(2, dim=1)
        return self.down(F.silu(gate) * up)


@dataclass(frozen=True)
class DecoderLayer:
    """Attention and MLP, each normed before and added to its input."""

    attention_norm: RMSNorm
    attention: Attention
    mlp_norm: RMSNorm
    mlp: MLP

    def __call__(self, hidden: torch.Tensor, context: StepContext) -> torch.Tensor:
        """[T, E] to [T, E]."""
        hidden = hidden + self.attention(self.attention_norm(hidden), context)
        return hidden + self.mlp(self.mlp_norm(hidden))


@dataclass(frozen=True)
class RopeTable:
    """Rotations of every position, made for `rotate`; computed in float32."""

    cosines: torch.Tensor  # [max_position_embeddings, D], the half row twice
    sines: torch.Tensor  # [max_position_embeddings, D], the first half negated

    @staticmethod
    def of(config: ModelConfig, dtype: torch.dtype, device: str) -> "RopeTable":
        """The table of a model, on its device."""
        positions = torch.arange(config.max_position_embeddings, dtype=torch.float32)
        scaling = config.rope_scaling
        frequencies = rope_frequencies(config.rope_theta, config.head_dim, scaling)
        angles = torch.outer(positions, frequencies)  # [positions, D / 2]
        factor = 1.0 if scaling is None else scaling.attention_factor
        cosines, sines = angles.cos() * factor, angles.sin() * factor
        return RopeTable(
            torch.cat((cosines, cosines), dim=1).to(device, dtype),
            torch.cat((-sines, sines), dim=1).to(device, dtype),
        )


def rotate(heads: torch.Tensor, cosines: torch.Tensor, sines: torch.Tensor) -> torch.Tensor:
    """Rope on [..., heads, D]: (a, b) becomes (a cos - b sin, b cos + a sin), halves a and b."""
    return heads * cosines + heads.roll(heads.shape[-1] // 2, dims=-1) * sines
