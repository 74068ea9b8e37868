"""Quantized weights of a decoder: converted once, kept beside the model folder.

    <name>/            the Hugging Face folder
    <name>.int8-3/     one .npy file per array of canopy.models.quantized.conversion, here in format
                       int8 of version 3, and a manifest, which says what they were made from

The folder is made under another name and renamed, so a folder under its own name is complete.
"""

import json
import logging
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812

from canopy.model_store.manifest import file_sha256, integrity_error, manifest_path, write_manifest
from canopy.models.block_drafter.network import BlockDrafterConfig
from canopy.models.config import ModelConfig
from canopy.models.llama.weights import StoredWeights
from canopy.models.quantized.conversion import Arrays, convert
from canopy.models.quantized.formats import LinearFormat, WeightFormat
from canopy.models.tied_head import EMBEDDING
from canopy_kernels.cpu import aligned
from canopy_kernels.int4.layout import dequantize_outputs
from canopy_kernels.int8.decoder import Shape, Weights

logger = logging.getLogger(__name__)

Embedding = Callable[[torch.Tensor], np.ndarray]  # int64 [T] to float32 [T, E]

_LINEARS = ("qkv", "output", "gate_up", "down")


def load_quantized_weights(
    folder: str | Path, config: ModelConfig, weight_format: WeightFormat
) -> tuple[Embedding, Weights]:
    """The embedding, and the weights of the layers and the head.

    Raises InvalidDeployment for a folder that does not hold what the configuration names.
    """
    folder = Path(folder).resolve()
    stored = StoredWeights(folder, config)
    arrays = _kept_arrays(folder, stored, config, weight_format)
    return _embedding(stored, arrays, config, weight_format), _weights(arrays, weight_format)


def shape_of(config: ModelConfig | BlockDrafterConfig) -> Shape:
    """What the kernels must know of a network beside its weights."""
    return Shape(
        config.num_heads,
        config.num_kv_heads,
        config.head_dim,
        config.intermediate_size,
        np.float32(config.rms_norm_eps),
    )


def kept_folder(folder: Path, weight_format: WeightFormat) -> Path:
    """Where the arrays made from a model folder are kept."""
    return folder.with_name(f"{folder.name}.{weight_format.name}-{weight_format.version}")


def _kept_arrays(
    folder: Path, stored: StoredWeights, config: ModelConfig, weight_format: WeightFormat
) -> Arrays:
    kept, origin = kept_folder(folder, weight_format), _origin(folder, weight_format)
    if fault := integrity_error(kept, origin, full=False):
        logger.info("converting %s to %s (%s)", folder, weight_format.name, fault)
        arrays = convert(stored, config, weight_format)
        try:
            _keep(arrays, kept, origin)
        except OSError as error:
            logger.warning("cannot keep the weights of %s: %s", folder, error)
        return arrays
    return _read(kept)


def _weights(arrays: Arrays, weight_format: WeightFormat) -> Weights:
    kinds = dict.fromkeys(_LINEARS, weight_format.layers) | {"head": weight_format.head}
    fields: dict[str, Any] = {
        name: _linears(arrays, name, kinds[name]) if name in kinds else arrays[name]
        for name in Weights._fields
    }
    return Weights(**fields)


def _linears(arrays: Arrays, name: str, linear_format: LinearFormat) -> Any:
    kind = linear_format.kind
    return kind(*(arrays[f"{name}.{field}"] for field in kind._fields))


def _embedding(
    stored: StoredWeights, arrays: Arrays, config: ModelConfig, weight_format: WeightFormat
) -> Embedding:
    if not weight_format.has_quantized_embedding:
        embedding = stored[EMBEDDING]
        return lambda token_ids: F.embedding(token_ids, embedding).float().numpy()
    blocks = arrays["head.blocks" if config.tie_word_embeddings else "embedding.blocks"][0]
    return lambda token_ids: np.ascontiguousarray(
        dequantize_outputs(blocks, token_ids.numpy())[:, : config.hidden_size]
    )


def _origin(folder: Path, weight_format: WeightFormat) -> str:
    """Format, and the folder's manifest, or name, size and time of every weight file."""
    if integrity_error(folder, None, full=False) is None:
        manifest = file_sha256(manifest_path(folder))
        return f"format {weight_format.version} manifest {manifest}"
    files = {}
    for path in sorted(folder.glob("*.safetensors")):
        status = path.stat()
        files[path.name] = [status.st_size, status.st_mtime_ns]
    return f"format {weight_format.version} files {json.dumps(files)}"


def _keep(arrays: Arrays, kept: Path, origin: str) -> None:
    partial = Path(tempfile.mkdtemp(prefix=f"{kept.name}.", dir=kept.parent))
    try:
        for name, array in arrays.items():
            with (partial / f"{name}.npy").open("wb") as file:
                np.save(file, array)
        write_manifest(partial, origin)
        shutil.rmtree(kept, ignore_errors=True)
        partial.rename(kept)
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def _read(kept: Path) -> Arrays:
    """Copied out of the files: what is mapped lies on small pages."""
    return {
        path.name.removesuffix(".npy"): aligned.copy(np.load(path, mmap_mode="r"))
        for path in sorted(kept.glob("*.npy"))
    }
