"""The parts that all heads are made of. Parameters are named as in the published files."""

from typing import NamedTuple

import torch
import torch.nn.functional as F  # noqa: N812
from torch import nn

from canopy.models.config import ModelConfig
from canopy.models.llama.layers import rotate
from canopy.models.rope_frequencies import rope_frequencies


class Rotation(NamedTuple):
    """Of each row, made for `models.layers.rotate`."""

    cosines: torch.Tensor  # [..., 1, D]
    sines: torch.Tensor  # [..., 1, D], the first half negated


class Rope(nn.Module):
    """Rotations by position, computed in float32 or better."""

    frequencies: torch.Tensor  # [D / 2]

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        with torch.device("cpu"):  # real numbers, also where weights are still to come
            frequencies = rope_frequencies(config.rope_theta, config.head_dim, config.rope_scaling)
        scaling = config.rope_scaling
        self.attention_factor = 1.0 if scaling is None else scaling.attention_factor
        self.register_buffer("frequencies", frequencies, persistent=False)

    def forward(self, positions: torch.Tensor, dtype: torch.dtype) -> Rotation:
        """positions: int [...]."""
        exact = torch.promote_types(dtype, torch.float32)
        angles = positions.unsqueeze(-1).unsqueeze(-1).to(exact) * self.frequencies.to(exact)
        cosines, sines = (part * self.attention_factor for part in (angles.cos(), angles.sin()))
        return Rotation(
            torch.cat((cosines, cosines), dim=-1).to(dtype),
            torch.cat((-sines, sines), dim=-1).to(dtype),
        )


class Attention(nn.Module):
    """The projections around attention; who attends to what is the caller's matter."""

    def __init__(self, config: ModelConfig, input_size: int) -> None:
        super().__init__()
        query, key_value = config.num_heads * config.head_dim, config.num_kv_heads * config.head_dim
        self.head_dim = config.head_dim
        self.q_proj = nn.Linear(input_size, query, bias=config.qkv_bias)
        self.k_proj = nn.Linear(input_size, key_value, bias=config.qkv_bias)
        self.v_proj = nn.Linear(input_size, key_value, bias=config.qkv_bias)
        self.o_proj = nn.Linear(query, config.hidden_size, bias=config.output_bias)
        self.q_norm = self.k_norm = None
        if config.qk_norm:
            self.q_norm = nn.RMSNorm(config.head_dim, config.rms_norm_eps)
            self.k_norm = nn.RMSNorm(config.head_dim, config.rms_norm_eps)

    def queries(self, rows: torch.Tensor, rotation: Rotation) -> torch.Tensor:
        """[..., input] to [..., H, D]."""
        heads = self._heads(self.q_proj(rows))
        return rotate(self.q_norm(heads) if self.q_norm else heads, *rotation)

    def keys(self, rows: torch.Tensor, rotation: Rotation) -> torch.Tensor:
        """[..., input] to [..., K, D]."""
        heads = self._heads(self.k_proj(rows))
        return rotate(self.k_norm(heads) if self.k_norm else heads, *rotation)

    def values(self, rows: torch.Tensor) -> torch.Tensor:
        """[..., input] to [..., K, D]."""
        return self._heads(self.v_proj(rows))

    def _heads(self, rows: torch.Tensor) -> torch.Tensor:
        return rows.unflatten(-1, (-1, self.head_dim))


class MLP(nn.Module):
    """down(silu(gate(x)) * up(x))."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        hidden, inner = config.hidden_size, config.intermediate_size
        self.gate_proj = nn.Linear(hidden, inner, bias=config.mlp_bias)
        self.up_proj = nn.Linear(hidden, inner, bias=config.mlp_bias)
        self.down_proj = nn.Linear(inner, hidden, bias=config.mlp_bias)

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        """[..., E] to the same."""
        return self.down_proj(F.silu(self.gate_proj(rows)) * self.up_proj(rows))


class HeadLayer(nn.Module):
    """One decoder layer; EAGLE-3's first one reads two rows at once and has a norm for each."""

    def __init__(self, config: ModelConfig, num_inputs: int = 1) -> None:
        super().__init__()
        hidden, eps = config.hidden_size, config.rms_norm_eps
        self.input_layernorm = nn.RMSNorm(hidden, eps)
        self.hidden_norm = nn.RMSNorm(hidden, eps) if num_inputs == 2 else None
        self.self_attn = Attention(config, num_inputs * hidden)
        self.post_attention_layernorm = nn.RMSNorm(hidden, eps)
        self.mlp = MLP(config)

    def finish(self, residual: torch.Tensor, mixed: torch.Tensor) -> torch.Tensor:
        """What follows attention. residual: [..., E]; mixed: [..., H, D]; to [..., E]."""
        rows = residual + self.self_attn.o_proj(mixed.flatten(-2))
        return rows + self.mlp(self.post_attention_layernorm(rows))
