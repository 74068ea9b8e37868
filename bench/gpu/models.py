"""Targets of 1 to 8 billion random weights: speed does not depend on what they say."""

import torch

from canopy.models.config import ModelConfig
from canopy.models.llama.float_decoder import FloatDecoder, build_float_decoder
from canopy.models.llama.weights import expected_shapes


def _llama(
    hidden_size: int, intermediate_size: int, num_layers: int, heads: tuple[int, int], is_tied: bool
) -> ModelConfig:
    """heads: query heads, KV heads."""
    return ModelConfig(
        family="llama",
        vocab_size=128256,
        hidden_size=hidden_size,
        intermediate_size=intermediate_size,
        num_layers=num_layers,
        num_heads=heads[0],
        num_kv_heads=heads[1],
        head_dim=hidden_size // heads[0],
        max_position_embeddings=8192,
        rms_norm_eps=1e-5,
        rope_theta=5e5,
        rope_scaling=None,
        qkv_bias=False,
        output_bias=False,
        mlp_bias=False,
        qk_norm=False,
        tie_word_embeddings=is_tied,
        eos_token_ids=(),
    )


# The shapes of Llama 3.2 1B, 3.2 3B and 3.1 8B.
MODELS = {
    "1b": _llama(2048, 8192, 16, (32, 8), is_tied=True),
    "3b": _llama(3072, 8192, 28, (24, 8), is_tied=True),
    "8b": _llama(4096, 14336, 32, (32, 8), is_tied=False),
}


def num_weights(config: ModelConfig) -> int:
    """That a step reads: all but an embedding that is not the head."""
    shapes = expected_shapes(config)
    if not config.tie_word_embeddings:
        del shapes["model.embed_tokens.weight"]
    return sum(torch.Size(shape).numel() for shape in shapes.values())


def kv_bytes_per_token(config: ModelConfig, dtype: torch.dtype) -> int:
    """Keys and values of all layers."""
    return 2 * config.num_layers * config.num_kv_heads * config.head_dim * dtype.itemsize


def random_decoder(config: ModelConfig, dtype: str, device: str) -> FloatDecoder:
    """Weights small enough for hidden states to stay finite."""
    generator = torch.Generator(device).manual_seed(0)

    def draw(name: str, shape: tuple[int, ...]) -> torch.Tensor:
        kind = {"dtype": getattr(torch, dtype), "device": device}
        if name.endswith("norm.weight"):
            return torch.ones(shape, **kind)
        return torch.empty(shape, **kind).normal_(0.0, shape[-1] ** -0.5, generator=generator)

    stored = {name: draw(name, shape) for name, shape in expected_shapes(config).items()}
    return build_float_decoder(config, stored, dtype, device)
