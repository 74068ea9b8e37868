"""Tiny random models of every family, as `transformers` writes them."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import transformers as hf

SHAPE: dict[str, Any] = {
    "vocab_size": 97,
    "hidden_size": 48,
    "intermediate_size": 80,
    "num_hidden_layers": 2,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "initializer_range": 0.3,
    "eos_token_id": 3,
}
LLAMA3_ROPE = {
    "rope_type": "llama3",
    "rope_theta": 10000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}
YARN_ROPE = {
    "rope_type": "yarn",
    "rope_theta": 10000.0,
    "factor": 8.0,
    "original_max_position_embeddings": 32,
}


@dataclass(frozen=True)
class Family:
    config: type
    model: type
    settings: dict[str, Any]


FAMILIES = {
    "llama2": Family(hf.LlamaConfig, hf.LlamaForCausalLM, {"num_key_value_heads": 6}),
    "llama3": Family(
        hf.LlamaConfig,
        hf.LlamaForCausalLM,
        {"rope_parameters": LLAMA3_ROPE, "eos_token_id": [3, 5]},
    ),
    "llama_linear": Family(
        hf.LlamaConfig,
        hf.LlamaForCausalLM,
        {"rope_parameters": {"rope_type": "linear", "rope_theta": 10000.0, "factor": 4.0}},
    ),
    "llama_dynamic": Family(
        hf.LlamaConfig,
        hf.LlamaForCausalLM,
        {"rope_parameters": {"rope_type": "dynamic", "rope_theta": 10000.0, "factor": 4.0}},
    ),
    "llama_yarn": Family(hf.LlamaConfig, hf.LlamaForCausalLM, {"rope_parameters": YARN_ROPE}),
    "llama_biased": Family(
        hf.LlamaConfig, hf.LlamaForCausalLM, {"attention_bias": True, "mlp_bias": True}
    ),
    "smollm2": Family(
        hf.LlamaConfig,
        hf.LlamaForCausalLM,
        {
            "num_attention_heads": 9,
            "num_key_value_heads": 3,
            "hidden_size": 72,
            "tie_word_embeddings": True,
        },
    ),
    "mistral": Family(
        hf.MistralConfig, hf.MistralForCausalLM, {"sliding_window": None, "head_dim": 16}
    ),
    "qwen2": Family(hf.Qwen2Config, hf.Qwen2ForCausalLM, {"tie_word_embeddings": True}),
    "qwen3": Family(hf.Qwen3Config, hf.Qwen3ForCausalLM, {"head_dim": 24}),
}


def oracle(name: str, seed: int = 0) -> torch.nn.Module:
    """The `transformers` model; biases and norm weights are random too."""
    family = FAMILIES[name]
    torch.manual_seed(seed)
    model = family.model(family.config(**SHAPE | family.settings)).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() == 1:
                parameter.add_(0.3 * torch.randn_like(parameter))
    return model


def write_family(name: str, folder: Path, **options: Any) -> torch.nn.Module:
    """Save the oracle under `folder`, and return it."""
    model = oracle(name)
    model.save_pretrained(folder, **options)
    return model


def oracle_logits(model: torch.nn.Module, token_ids: list[int]) -> torch.Tensor:
    """float32 [n, V] of one sequence, computed at once."""
    with torch.inference_mode():
        return model(input_ids=torch.tensor([token_ids]), use_cache=False).logits[0].float()


def oracle_states(model: torch.nn.Module, token_ids: list[int]) -> torch.Tensor:
    """float32 [n, layers + 1, E]: hidden states after 0, 1, ... layers; the last one is normed."""
    with torch.inference_mode():
        outputs = model(
            input_ids=torch.tensor([token_ids]), use_cache=False, output_hidden_states=True
        )
    return torch.stack([states[0].float() for states in outputs.hidden_states], dim=1)
