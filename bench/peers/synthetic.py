"""Llama-shaped models of random weights, for the speed of sizes that nobody wants to download.

    <peers>/synthetic-1b/model.gguf    4-bit weights (Q4_1), the embedding, which is the head too,
                                       of 8 bits (Q8_0); for llama.cpp
    <peers>/synthetic-1b/folder/       the same numbers in float16, for Canopy

All layers have the same weights. Scales are powers of two and minima their multiples by 8, so
that a half float holds every weight. Tokenizer and chat template are the default model's.
"""

import argparse
import json
import shutil
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from bench.harness.benchmark import Options
from bench.peers.environment import gguf_of, peers_home
from canopy.config import DEFAULT_MODEL, Deployment
from canopy.model_store.gguf_tokenizer import write_tokenizer
from canopy.model_store.gguf_weights import (
    head_counts,
    read_metadata,
    unpermute,
    weight_name,
    write_config,
)
from canopy.progress import phase_bars

_GROUP = 32
_ARCHITECTURE = "llama"
_RESERVED = ("GGUF.", f"{_ARCHITECTURE}.", "general.")  # not taken from the default model's file


@dataclass(frozen=True)
class Shape:
    """Sizes of Llama 3.2 1B and 3B, and 3.1 8B, with the vocabulary of the default model."""

    hidden: int
    inner: int
    num_layers: int
    num_heads: int
    num_kv_heads: int


SHAPES = {
    "1b": Shape(2048, 8192, 16, 32, 8),
    "3b": Shape(3072, 8192, 28, 24, 8),
    "8b": Shape(4096, 14336, 32, 32, 8),
}


def add_synthetic_argument(parser: argparse.ArgumentParser) -> None:
    """`--synthetic SIZE`, for `target_models`."""
    parser.add_argument(
        "--synthetic", choices=SHAPES, help="a model of random weights in place of the target"
    )


def target_models(options: Options) -> tuple[Deployment, str]:
    """The deployment that is measured, and the model that llama.cpp reads: a name or a GGUF file.

    Raises CannotRun where the tokenizer's model cannot be fetched.
    """
    deployment = options.deployment
    if options.arguments.synthetic is None:
        return deployment, deployment.target.model
    home = synthetic_model(options.arguments.synthetic)
    target = replace(deployment.target, model=str(home / "folder"))
    return replace(deployment, target=target), str(home / "model.gguf")


def synthetic_model(size: str) -> Path:
    """The directory of a model, made if need be. Raises CannotRun."""
    home = peers_home() / f"synthetic-{size}"
    if not home.is_dir():
        with phase_bars() as progress:
            tokenizer = gguf_of(DEFAULT_MODEL, progress)
        partial = home.with_name(f"{home.name}.partial")
        shutil.rmtree(partial, ignore_errors=True)
        write_model(SHAPES[size], tokenizer, partial)
        partial.rename(home)
    return home


def write_model(shape: Shape, tokenizer: Path, home: Path) -> None:
    """Both forms of a model. tokenizer: a GGUF file that has the keys of one."""
    folder = home / "folder"
    folder.mkdir(parents=True)
    _write_gguf(shape, tokenizer, home / "model.gguf")
    _write_folder(home / "model.gguf", folder)


def _write_gguf(shape: Shape, tokenizer: Path, path: Path) -> None:
    from gguf import GGMLQuantizationType, GGUFReader, GGUFWriter

    reader, writer = GGUFReader(tokenizer), GGUFWriter(path, _ARCHITECTURE)
    for name, field in reader.fields.items():
        if not name.startswith(_RESERVED):
            kind, *element = field.types
            writer.add_key_value(name, field.contents(), kind, element[0] if element else None)
    vocabulary = len(read_metadata(reader)["tokenizer.ggml.tokens"])
    _add_shape(writer, shape, vocabulary)
    for name, tensor in _tensors(shape, vocabulary):
        form = GGMLQuantizationType[tensor.kind] if tensor.kind else None
        writer.add_tensor(name, tensor.data, raw_dtype=form)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _add_shape(writer: Any, shape: Shape, vocabulary: int) -> None:
    writer.add_block_count(shape.num_layers)
    writer.add_context_length(8192)
    writer.add_embedding_length(shape.hidden)
    writer.add_feed_forward_length(shape.inner)
    writer.add_head_count(shape.num_heads)
    writer.add_head_count_kv(shape.num_kv_heads)
    writer.add_rope_freq_base(500000.0)
    writer.add_rope_dimension_count(shape.hidden // shape.num_heads)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_vocab_size(vocabulary)


@dataclass(frozen=True)
class _Tensor:
    kind: str  # of the package gguf; "": float32
    data: np.ndarray


def _tensors(shape: Shape, vocabulary: int) -> Iterator[tuple[str, _Tensor]]:
    rng = np.random.default_rng(0)
    norm = _Tensor("", np.ones(shape.hidden, np.float32))
    key_value = shape.hidden // shape.num_heads * shape.num_kv_heads
    layer = {
        "attn_norm": norm,
        "attn_q": _random_q4_1(rng, shape.hidden, shape.hidden),
        "attn_k": _random_q4_1(rng, key_value, shape.hidden),
        "attn_v": _random_q4_1(rng, key_value, shape.hidden),
        "attn_output": _random_q4_1(rng, shape.hidden, shape.hidden),
        "ffn_norm": norm,
        "ffn_gate": _random_q4_1(rng, shape.inner, shape.hidden),
        "ffn_up": _random_q4_1(rng, shape.inner, shape.hidden),
        "ffn_down": _random_q4_1(rng, shape.hidden, shape.inner),
    }
    yield "token_embd.weight", _random_q8_0(rng, vocabulary, shape.hidden)
    for index in range(shape.num_layers):
        for name, tensor in layer.items():
            yield f"blk.{index}.{name}.weight", tensor
    yield "output_norm.weight", norm


def _random_q4_1(rng: np.random.Generator, num_outputs: int, num_inputs: int) -> _Tensor:
    blocks = np.empty(
        (num_outputs, num_inputs // _GROUP), [("d", "<f2"), ("m", "<f2"), ("qs", "u1", 16)]
    )
    blocks["d"] = _powers(rng, blocks.shape, num_inputs)
    blocks["m"] = -8 * blocks["d"]
    blocks["qs"] = rng.integers(256, size=blocks["qs"].shape, dtype=np.uint8)
    return _Tensor("Q4_1", blocks.view(np.uint8))


def _random_q8_0(rng: np.random.Generator, num_outputs: int, num_inputs: int) -> _Tensor:
    blocks = np.empty((num_outputs, num_inputs // _GROUP), [("d", "<f2"), ("qs", "i1", 32)])
    blocks["d"] = _powers(rng, blocks.shape, 256 * num_inputs)
    blocks["qs"] = rng.integers(-127, 128, size=blocks["qs"].shape, dtype=np.int8)
    blocks["qs"][..., 0] = 127  # as in every group of a real file, whose scale is the largest / 127
    return _Tensor("Q8_0", blocks.view(np.uint8))


def _powers(rng: np.random.Generator, shape: tuple[int, ...], num_inputs: int) -> np.ndarray:
    """Scales with which a row of so many inputs keeps its magnitude, about."""
    exponent = -round(np.log2(num_inputs) / 2) - 2
    return np.ldexp(1.0, exponent + rng.integers(-1, 2, size=shape)).astype(np.float16)


def _write_folder(gguf: Path, folder: Path) -> None:
    """What `canopy fetch-model` makes of a GGUF file, but in float16 and a file for each layer."""
    from gguf import GGUFReader, dequantize
    from safetensors.numpy import save_file

    reader = GGUFReader(gguf)
    metadata = read_metadata(reader)
    write_config(reader, folder)
    write_tokenizer(metadata, folder)
    heads = head_counts(metadata)
    weight_map: dict[str, str] = {}
    for part, tensors in _by_layer(reader.tensors).items():
        stored = {}
        for tensor in tensors:
            values = dequantize(tensor.data, tensor.tensor_type).astype(np.float16)
            if count := heads.get(tensor.name.split(".")[-2]):
                values = unpermute(values, count)
            stored[weight_name(tensor.name)] = np.ascontiguousarray(values)
        save_file(stored, folder / f"model-{part}.safetensors", metadata={"format": "pt"})
        weight_map |= dict.fromkeys(stored, f"model-{part}.safetensors")
    index = json.dumps({"metadata": {}, "weight_map": weight_map})
    (folder / "model.safetensors.index.json").write_text(index, encoding="utf-8")


def _by_layer(tensors: Any) -> dict[str, list[Any]]:
    parts: dict[str, list[Any]] = {}
    for tensor in tensors:
        head, layer = tensor.name.split(".")[:2]
        parts.setdefault(layer if head == "blk" else "top", []).append(tensor)
    return parts
