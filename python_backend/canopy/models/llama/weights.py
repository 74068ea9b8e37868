"""The tensors of a Hugging Face folder: one `model.safetensors`, or shards under an index."""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open

from canopy.errors import InvalidDeployment
from canopy.models.config import ModelConfig
from canopy.models.tied_head import EMBEDDING, HEAD

SINGLE = "model.safetensors"
INDEX = "model.safetensors.index.json"
# Written by old exporters, and computed from the configuration instead.
DERIVED = "rotary_emb.inv_freq"


class StoredWeights(Mapping[str, torch.Tensor]):
    """The tensors of a decoder by their Hugging Face names, on the CPU, as they were stored.

    Each is read when it is asked for. Raises InvalidDeployment that names what is missing,
    unexpected or of another shape.
    """

    def __init__(self, folder: str | Path, config: ModelConfig) -> None:
        self._places: dict[str, tuple[Any, str]] = {}  # open file, name there
        for file in weight_files(Path(folder)):
            try:
                opened = safe_open(file, framework="pt")
                self._places |= {name: (opened, name) for name in opened.keys()}  # noqa: SIM118
            except (OSError, SafetensorError) as error:
                raise InvalidDeployment(f"cannot read {file}: {error}") from error
        for name in [name for name in self._places if name.endswith(DERIVED)]:
            del self._places[name]
        if config.tie_word_embeddings and (head := self._places.pop(HEAD, None)) is not None:
            self._places.setdefault(EMBEDDING, head)
        shapes = {
            name: tuple(opened.get_slice(stored).get_shape())
            for name, (opened, stored) in self._places.items()
        }
        require_fit(shapes, expected_shapes(config), folder)

    def __getitem__(self, name: str) -> torch.Tensor:
        opened, stored = self._places[name]
        tensor: torch.Tensor = opened.get_tensor(stored)
        return tensor

    def __iter__(self) -> Iterator[str]:
        return iter(self._places)

    def __len__(self) -> int:
        return len(self._places)


def load_weights(folder: str | Path, config: ModelConfig) -> dict[str, torch.Tensor]:
    """All of `StoredWeights` in memory. Raises InvalidDeployment."""
    return dict(StoredWeights(folder, config))


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
    found: Mapping[str, tuple[int, ...]], shapes: dict[str, tuple[int, ...]], folder: str | Path
) -> None:
    """Raises InvalidDeployment that names what is missing, unexpected or of another shape."""
    faults = {
        "lacks": sorted(set(shapes) - set(found)),
        "has unexpected": sorted(set(found) - set(shapes)),
        "has a wrong shape of": [
            f"{name} {found[name]} instead of {shape}"
            for name, shape in shapes.items()
            if name in found and found[name] != shape
        ],
    }
    for fault, names in faults.items():
        if names:
            more = f" and {len(names) - 5} more" if len(names) > 5 else ""
            raise InvalidDeployment(f"{folder} {fault} {', '.join(names[:5])}{more}")
