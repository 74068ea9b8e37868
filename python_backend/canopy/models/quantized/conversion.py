"""The arrays of a quantized decoder, made from the tensors of a Hugging Face folder.

They are named by the fields of `canopy_kernels.int8.decoder.Weights`: `attention_norm`, or
`qkv.bias` for the bias of a linear; those of an embedding that is not the head's begin with
`embedding`.
"""

from collections.abc import Mapping

import numpy as np
import torch

from canopy.models.config import ModelConfig
from canopy.models.quantized.formats import LinearFormat, WeightFormat
from canopy.models.tied_head import EMBEDDING, HEAD
from canopy_kernels.cpu import aligned
from canopy_kernels.int8.layout import pad_outputs

Stored = Mapping[str, torch.Tensor]
Arrays = dict[str, np.ndarray]

_ATTENTION, _MLP = "self_attn.", "mlp."


def convert(stored: Stored, config: ModelConfig, weight_format: WeightFormat) -> Arrays:
    """Quantize the tensors of a folder, by their Hugging Face names."""
    layers, top = _prefixes(config), [""]
    arrays = {
        "attention_norm": _layered(stored, config, "input_layernorm"),
        "qk_norm": _qk_norm(stored, config),
        "mlp_norm": _layered(stored, config, "post_attention_layernorm"),
        "norm": _array(stored["model.norm.weight"])[None],
    }
    of_layers = {
        "qkv": [f"{_ATTENTION}{part}_proj" for part in "qkv"],
        "output": [f"{_ATTENTION}o_proj"],
        "gate_up": [f"{_MLP}gate_proj", f"{_MLP}up_proj"],
        "down": [f"{_MLP}down_proj"],
    }
    for name, parts in of_layers.items():
        arrays |= _linears(stored, name, weight_format.layers, layers, parts)
    head = (EMBEDDING if config.tie_word_embeddings else HEAD).removesuffix(".weight")
    arrays |= _linears(stored, "head", weight_format.head, top, [head])
    if weight_format.has_quantized_embedding and not config.tie_word_embeddings:
        embedding = EMBEDDING.removesuffix(".weight")
        arrays |= _linears(stored, "embedding", weight_format.head, top, [embedding])
    return arrays


def _prefixes(config: ModelConfig) -> list[str]:
    return [f"model.layers.{index}." for index in range(config.num_layers)]


def _array(tensor: torch.Tensor) -> np.ndarray:
    return tensor.float().numpy()


def _layered(stored: Stored, config: ModelConfig, name: str) -> np.ndarray:
    return np.stack([_array(stored[f"{prefix}{name}.weight"]) for prefix in _prefixes(config)])


def _qk_norm(stored: Stored, config: ModelConfig) -> np.ndarray:
    """float32 [L, heads, D], the weight of queries for every query head, then that of keys."""
    if not config.qk_norm:
        return np.empty((config.num_layers, 0, config.head_dim), np.float32)
    query = _layered(stored, config, "self_attn.q_norm")[:, None]
    key = _layered(stored, config, "self_attn.k_norm")[:, None]
    return np.concatenate(
        (query.repeat(config.num_heads, axis=1), key.repeat(config.num_kv_heads, axis=1)), axis=1
    )


def _linears(
    stored: Stored, name: str, linear_format: LinearFormat, prefixes: list[str], parts: list[str]
) -> Arrays:
    """In every layer one linear whose outputs are those of the named parts, in order."""
    fields = [f"{name}.{field}" for field in linear_format.kind._fields]
    arrays: Arrays = {}
    for layer, prefix in enumerate(prefixes):
        made = _linear(stored, linear_format, [prefix + part for part in parts])
        for field, array in zip(fields, made, strict=True):
            if layer == 0:
                arrays[field] = aligned.empty((len(prefixes), *array.shape), array.dtype)
            arrays[field][layer] = array
    return arrays


def _linear(
    stored: Stored, linear_format: LinearFormat, names: list[str]
) -> tuple[np.ndarray, ...]:
    """The arrays of one layer."""
    weight = np.concatenate([_array(stored[f"{name}.weight"]) for name in names])
    bias = np.zeros(len(weight), np.float32)
    if f"{names[0]}.bias" in stored:
        bias = np.concatenate([_array(stored[f"{name}.bias"]) for name in names])
    return *linear_format.quantize(weight), pad_outputs(bias)
