"""A small drafter of the Llama family: made from its target, kept as any model is."""

import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from canopy.model_store.manifest import write_manifest
from canopy.models.config import ModelConfig
from canopy.models.llama.weights import load_weights

EMBEDDING = "model.embed_tokens.weight"
_EMBEDDING_RMS = 0.05
_TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json")


@dataclass(frozen=True)
class SmallShape:
    """Of the network; the vocabulary and the longest context are the target's."""

    hidden_size: int = 192
    num_layers: int = 6
    head_dim: int = 64
    intermediate_size: int = 512


def new_small_drafter(target_folder: Path, shape: SmallShape, seed: int) -> Any:
    """An untrained `transformers.LlamaForCausalLM`, float32.

    Its embedding, which is its head too, is the target's on the axes along which that varies most.
    Raises InvalidDeployment for a target that cannot be read.
    """
    from transformers import LlamaConfig, LlamaForCausalLM

    target = ModelConfig.from_folder(target_folder)
    config = LlamaConfig(
        vocab_size=target.vocab_size,
        hidden_size=shape.hidden_size,
        intermediate_size=shape.intermediate_size,
        num_hidden_layers=shape.num_layers,
        num_attention_heads=shape.hidden_size // shape.head_dim,
        num_key_value_heads=1,
        head_dim=shape.head_dim,
        max_position_embeddings=target.max_position_embeddings,
        rms_norm_eps=1e-5,
        rope_parameters={"rope_type": "default", "rope_theta": 1e4},
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=list(target.eos_token_ids),
    )
    torch.manual_seed(seed)
    model = LlamaForCausalLM(config)
    embedding = load_weights(target_folder, target)[EMBEDDING].float()
    with torch.no_grad():
        model.model.embed_tokens.weight.copy_(_projected(embedding, shape.hidden_size))
    return model


def _projected(embedding: torch.Tensor, size: int) -> torch.Tensor:
    """[V, E] on its `size` first principal axes, [V, size], scaled to _EMBEDDING_RMS."""
    centred = embedding - embedding.mean(dim=0)
    _, axes = torch.linalg.eigh(centred.T @ centred)
    projected = centred @ axes[:, -size:]
    return projected * (_EMBEDDING_RMS / projected.square().mean().sqrt())


def save_small_drafter(model: Any, target_folder: Path, folder: Path) -> None:
    """A Hugging Face folder in bfloat16, with the target's tokenizer."""
    folder.mkdir(parents=True, exist_ok=True)
    half = type(model)(model.config)
    half.load_state_dict(model.state_dict())
    half.to(torch.bfloat16).save_pretrained(folder)
    for name in _TOKENIZER_FILES:
        if (target_folder / name).is_file():
            shutil.copyfile(target_folder / name, folder / name)
    write_manifest(folder, f"the tokenizer of {target_folder.name}")
