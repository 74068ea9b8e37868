"""Int8 weights of a decoder: converted once, kept beside the model folder.

    <name>/            the Hugging Face folder
    <name>.int8-3/     one .npy file per array of `canopy_kernels.int8.decoder.Weights`,
                       and a manifest, which says what they were made from

The folder is made under another name and renamed, so a folder under its own name is complete.
"""

import json
import logging
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch

from canopy.model_store.manifest import file_sha256, integrity_error, manifest_path, write_manifest
from canopy.models.block_drafter.network import BlockDrafterConfig
from canopy.models.config import ModelConfig
from canopy.models.llama.weights import load_weights
from canopy_kernels.cpu import aligned
from canopy_kernels.int8.decoder import Shape, Weights
from canopy_kernels.int8.fused_ops import Linears
from canopy_kernels.int8.gemm import quantize_weight
from canopy_kernels.int8.layout import pad_outputs

logger = logging.getLogger(__name__)

FORMAT = 3  # of the kept arrays; versions of Canopy that differ in it share no folder


def load_int8_weights(folder: str | Path, config: ModelConfig) -> tuple[torch.Tensor, Weights]:
    """The embedding [V, E] as it was stored, and the layers and the head as int8.

    Raises InvalidDeployment for a folder that does not hold what the configuration names.
    """
    folder = Path(folder).resolve()
    stored = load_weights(folder, config)
    embedding = stored["model.embed_tokens.weight"]
    kept, origin = folder.with_name(f"{folder.name}.int8-{FORMAT}"), _origin(folder)
    if fault := integrity_error(kept, origin, full=False):
        logger.info("converting %s to int8 (%s)", folder, fault)
        weights = convert(stored, config)
        try:
            _keep(weights, kept, origin)
        except OSError as error:
            logger.warning("cannot keep the int8 weights of %s: %s", folder, error)
            return embedding, weights
    return embedding, _read(kept)


def shape_of(config: ModelConfig | BlockDrafterConfig) -> Shape:
    """What the kernels must know of a network beside its weights."""
    return Shape(
        config.num_heads,
        config.num_kv_heads,
        config.head_dim,
        config.intermediate_size,
        np.float32(config.rms_norm_eps),
    )


def convert(stored: dict[str, torch.Tensor], config: ModelConfig) -> Weights:
    """Quantize the tensors of a folder, by their Hugging Face names."""
    head = "model.embed_tokens" if config.tie_word_embeddings else "lm_head"
    attention, mlp = "self_attn.", "mlp."
    return Weights(
        attention_norm=_layered(stored, config, "input_layernorm"),
        qkv=_linears(stored, config, *(f"{attention}{part}_proj" for part in "qkv")),
        qk_norm=_qk_norm(stored, config),
        output=_linears(stored, config, f"{attention}o_proj"),
        mlp_norm=_layered(stored, config, "post_attention_layernorm"),
        gate_up=_linears(stored, config, f"{mlp}gate_proj", f"{mlp}up_proj"),
        down=_linears(stored, config, f"{mlp}down_proj"),
        norm=_array(stored["model.norm.weight"])[None],
        head=_stack([_linear(stored, [head])]),
    )


def _prefixes(config: ModelConfig) -> list[str]:
    return [f"model.layers.{index}." for index in range(config.num_layers)]


def _array(tensor: torch.Tensor) -> np.ndarray:
    return tensor.float().numpy()


def _layered(stored: dict[str, torch.Tensor], config: ModelConfig, name: str) -> np.ndarray:
    return np.stack([_array(stored[f"{prefix}{name}.weight"]) for prefix in _prefixes(config)])


def _qk_norm(stored: dict[str, torch.Tensor], config: ModelConfig) -> np.ndarray:
    """float32 [L, heads, D], the weight of queries for every query head, then that of keys."""
    if not config.qk_norm:
        return np.empty((config.num_layers, 0, config.head_dim), np.float32)
    query = _layered(stored, config, "self_attn.q_norm")[:, None]
    key = _layered(stored, config, "self_attn.k_norm")[:, None]
    return np.concatenate(
        (query.repeat(config.num_heads, axis=1), key.repeat(config.num_kv_heads, axis=1)), axis=1
    )


def _linears(stored: dict[str, torch.Tensor], config: ModelConfig, *names: str) -> Linears:
    """In every layer one linear whose outputs are those of the named ones, in order."""
    return _stack(
        [_linear(stored, [prefix + name for name in names]) for prefix in _prefixes(config)]
    )


def _linear(
    stored: dict[str, torch.Tensor], names: list[str]
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    weight = np.concatenate([_array(stored[f"{name}.weight"]) for name in names])
    blocks, scales = quantize_weight(weight)
    bias = np.zeros(len(weight), np.float32)
    if f"{names[0]}.bias" in stored:
        bias = np.concatenate([_array(stored[f"{name}.bias"]) for name in names])
    return blocks, scales, pad_outputs(bias)


def _stack(linears: list[tuple[np.ndarray, np.ndarray, np.ndarray]]) -> Linears:
    return Linears(*(aligned.copy(np.stack(parts)) for parts in zip(*linears, strict=True)))


def _origin(folder: Path) -> str:
    """Format, and the folder's manifest, or name, size and time of every weight file."""
    if integrity_error(folder, None, full=False) is None:
        return f"format {FORMAT} manifest {file_sha256(manifest_path(folder))}"
    files = {}
    for path in sorted(folder.glob("*.safetensors")):
        status = path.stat()
        files[path.name] = [status.st_size, status.st_mtime_ns]
    return f"format {FORMAT} files {json.dumps(files)}"


def _named(weights: Weights) -> Iterator[tuple[str, np.ndarray]]:
    for name, value in weights._asdict().items():
        if isinstance(value, Linears):
            yield from ((f"{name}.{part}", array) for part, array in value._asdict().items())
        else:
            yield name, value


def _keep(weights: Weights, kept: Path, origin: str) -> None:
    partial = Path(tempfile.mkdtemp(prefix=f"{kept.name}.", dir=kept.parent))
    try:
        for name, array in _named(weights):
            with (partial / f"{name}.npy").open("wb") as file:
                np.save(file, array)
        write_manifest(partial, origin)
        shutil.rmtree(kept, ignore_errors=True)
        partial.rename(kept)
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def _read(kept: Path) -> Weights:
    """Copied out of the files: what is mapped lies on small pages."""

    def array(name: str) -> np.ndarray:
        return aligned.copy(np.load(kept / f"{name}.npy", mmap_mode="r"))

    def field(name: str, kind: type) -> Any:
        if kind is Linears:
            return Linears(*(array(f"{name}.{part}") for part in Linears._fields))
        return array(name)

    return Weights(*(field(name, kind) for name, kind in Weights.__annotations__.items()))
