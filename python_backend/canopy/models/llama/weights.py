"""The tensors of a Hugging Face folder: one `model.safetensors`, or shards under an index."""

import json
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open

from canopy.errors import InvalidDeployment
from canopy.models.config import ModelConfig
from canopy.models.tied_head import EMBEDDING, HEAD

SINGLE = "model.safetensors"
INDEX = "model.safetensors.index.json"
# Written by old exporters, and computed from the configuration instead.
DERIVED = "rotary_emb.inv_freq"


def load_weights(folder: str | Path, config: ModelConfig) -> dict[str, torch.Tensor]:
    """All tensors of a decoder by their Hugging Face names, on the CPU, as they were stored.

    Raises InvalidDeployment that names what is missing, unexpected or of another shape.
    """
    weights: dict[str, torch.Tensor] = {}
    for file in weight_files(Path(folder)):
        try:
            with safe_open(file, framework="pt") as tensors:
                weights.update({name: tensors.get_tensor(name) for name in tensors.keys()})  # noqa: SIM118
        except (OSError, SafetensorError) as error:
            raise InvalidDeployment(f"cannot read {file}: {error}") from error
    weights = {name: tensor for name, tensor in weights.items() if not name.endswith(DERIVED)}
    if config.tie_word_embeddings and (head := weights.pop(HEAD, None)) is not None:
        weights.setdefault(EMBEDDING, head)
    require_fit(weights, expected_shapes(config), folder)
    return weights


def expected_shapes(config: ModelConfig) -> dict[str, tuple[int, ...]]:
    """Name and shape of every tensor that the decoder takes from a folder."""
    embedding = (config.vocab_size, config.hidden_size)
    shapes = {EMBEDDING: embedding, "model.norm.weight": (config.hidden_size,)}
    if not config.tie_word_embeddings:
        shapes[HEAD] = embedding
    for index in range(config.num_layers):
        for name, shape in _layer_shapes(config).items():
            shapes[f"model.layers.{index}.{name}"] = shape
    return shapes


def _layer_shapes(config: ModelConfig) -> dict[str, tuple[int, ...]]:
    hidden, inner = config.hidden_size, config.intermediate_size
    query, key_value = config.num_heads * config.head_dim, config.num_kv_heads * config.head_dim
    linears = {
        "self_attn.q_proj": (query, hidden, config.qkv_bias),
        "self_attn.k_proj": (key_value, hidden, config.qkv_bias),
        "self_attn.v_proj": (key_value, hidden, config.qkv_bias),
        "self_attn.o_proj": (hidden, query, config.output_bias),
        "mlp.gate_proj": (inner, hidden, config.mlp_bias),
        "mlp.up_proj": (inner, hidden, config.mlp_bias),
        "mlp.down_proj": (hidden, inner, config.mlp_bias),
    }
    shapes: dict[str, tuple[int, ...]] = {
        "input_layernorm.weight": (hidden,),
        "post_attention_layernorm.weight": (hidden,),
    }
    if config.qk_norm:
        shapes["self_attn.q_norm.weight"] = (config.head_dim,)
        shapes["self_attn.k_norm.weight"] = (config.head_dim,)
    for name, (rows, columns, has_bias) in linears.items():
        shapes[f"{name}.weight"] = (rows, columns)
        if has_bias:
            shapes[f"{name}.bias"] = (rows,)
    return shapes


def weight_files(folder: Path) -> list[Path]:
    """The safetensors files of a folder. Raises InvalidDeployment where there are none."""
    if (folder / SINGLE).is_file():
        return [folder / SINGLE]
    try:
        index = json.loads((folder / INDEX).read_text(encoding="utf-8"))
        return [folder / name for name in sorted(set(index["weight_map"].values()))]
    except FileNotFoundError as error:
        raise InvalidDeployment(f"{folder} holds neither {SINGLE} nor {INDEX}") from error
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise InvalidDeployment(f"{folder / INDEX} is malformed: {error!r}") from error


def require_fit(
    weights: dict[str, torch.Tensor], shapes: dict[str, tuple[int, ...]], folder: str | Path
) -> None:
    """Raises InvalidDeployment that names what is missing, unexpected or of another shape."""
    faults = {
        "lacks": sorted(set(shapes) - set(weights)),
        "has unexpected": sorted(set(weights) - set(shapes)),
        "has a wrong shape of": [
            f"{name} {tuple(weights[name].shape)} instead of {shape}"
            for name, shape in shapes.items()
            if name in weights and tuple(weights[name].shape) != shape
        ],
    }
    for fault, names in faults.items():
        if names:
            more = f" and {len(names) - 5} more" if len(names) > 5 else ""
            raise InvalidDeployment(f"{folder} {fault} {', '.join(names[:5])}{more}")
