"""The weights and configuration of a Llama-family GGUF file as Hugging Face files.

Weights are dequantized to float32, the exact values of the file. GGUF stores the rows of the Q
and K projections for interleaved rope; Hugging Face rotates halves, so the rows go back:

    GGUF row of a head:    0, d/2, 1, d/2 + 1, ...       Hugging Face:    0, 1, ..., d - 1
"""

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import numpy as np

from canopy.errors import InvalidDeployment

if TYPE_CHECKING:
    from gguf import GGUFReader

Progress = Callable[[int, int], None]  # done, total

LAYER_NAMES = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
TOP_NAMES = {
    "token_embd.weight": "model.embed_tokens.weight",
    "output_norm.weight": "model.norm.weight",
    "output.weight": "lm_head.weight",
}


def read_metadata(reader: "GGUFReader") -> dict[str, Any]:
    """All keys of a GGUF file with their values as Python objects."""
    return {name: field.contents() for name, field in reader.fields.items()}


def weight_name(name: str) -> str:
    """The Hugging Face name of a GGUF tensor; unknown ones raise InvalidDeployment."""
    if name in TOP_NAMES:
        return TOP_NAMES[name]
    prefix, _, rest = name.partition(".")
    layer, _, part = rest.partition(".")
    kind, _, suffix = part.rpartition(".")
    if prefix != "blk" or suffix != "weight" or kind not in LAYER_NAMES:
        raise InvalidDeployment(f"unknown tensor {name} in the GGUF file")
    return f"model.layers.{layer}.{LAYER_NAMES[kind]}.weight"


def head_counts(metadata: dict[str, Any]) -> dict[str, int]:
    """Heads of the projections whose rows a GGUF file permutes, by the names of their tensors."""
    return {
        "attn_q": metadata["llama.attention.head_count"],
        "attn_k": metadata["llama.attention.head_count_kv"],
    }


def unpermute(rows: np.ndarray, num_heads: int) -> np.ndarray:
    """Rows [heads * head_dim, in] from interleaved to half-split rope order."""
    per_head = rows.reshape(num_heads, -1, 2, rows.shape[1])  # [heads, d / 2, 2, in]
    return per_head.swapaxes(1, 2).reshape(rows.shape)


def write_weights(reader: "GGUFReader", folder: Path, progress: Progress) -> None:
    """Write model.safetensors in float32, reporting bytes of the GGUF done and in all."""
    from gguf import dequantize
    from safetensors.numpy import save_file

    num_heads = head_counts(read_metadata(reader))
    total = sum(int(tensor.n_bytes) for tensor in reader.tensors)
    done, weights = 0, {}
    for tensor in reader.tensors:
        values = dequantize(tensor.data, tensor.tensor_type).astype(np.float32, copy=False)
        kind = tensor.name.split(".")[-2]
        if kind in num_heads:
            values = unpermute(values, num_heads[kind])
        weights[weight_name(tensor.name)] = np.ascontiguousarray(values)
        done += int(tensor.n_bytes)
        progress(done, total)
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})


def write_config(
    reader: "GGUFReader", folder: Path, sampling: Mapping[str, float] = MappingProxyType({})
) -> None:
    """Write config.json and, with `sampling` in it, generation_config.json."""
    metadata = read_metadata(reader)
    if metadata["general.architecture"] != "llama":
        raise InvalidDeployment("only GGUF files of the Llama architecture can be converted")
    special = {
        f"{name}_token_id": metadata[f"tokenizer.ggml.{key}_token_id"]
        for name, key in (("bos", "bos"), ("eos", "eos"), ("pad", "padding"))
    }
    hidden, heads = metadata["llama.embedding_length"], metadata["llama.attention.head_count"]
    config = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_act": "silu",
        "hidden_size": hidden,
        "intermediate_size": metadata["llama.feed_forward_length"],
        "num_hidden_layers": metadata["llama.block_count"],
        "num_attention_heads": heads,
        "num_key_value_heads": metadata["llama.attention.head_count_kv"],
        "head_dim": hidden // heads,
        "max_position_embeddings": metadata["llama.context_length"],
        "rms_norm_eps": float(str(np.float32(metadata["llama.attention.layer_norm_rms_epsilon"]))),
        "rope_theta": metadata["llama.rope.freq_base"],
        "vocab_size": metadata["llama.vocab_size"],
        "tie_word_embeddings": all(tensor.name != "output.weight" for tensor in reader.tensors),
        "attention_bias": False,
        "mlp_bias": False,
        "torch_dtype": "float32",
        **special,
    }
    for name, values in (("config", config), ("generation_config", special | {**sampling})):
        text = json.dumps(values, indent=2) + "\n"
        (folder / f"{name}.json").write_text(text, encoding="utf-8")
