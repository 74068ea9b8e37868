"""Block drafters on disk: `drafter.json` and `drafter.safetensors`, without the target's tensors.

A drafter is made from its target (layers copied, the rest neutral) and only ever used with it.
"""

import dataclasses
import json
from collections.abc import Sequence
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file, save_file

from canopy.config import DEFAULT_DRAFTER
from canopy.errors import InvalidDeployment
from canopy.model_store.assets import BLOCK_DRAFTER
from canopy.model_store.manifest import write_manifest
from canopy.model_store.vocabulary import vocabulary_digest
from canopy.models.block_drafter.network import BlockDrafter, BlockDrafterConfig
from canopy.models.config import ModelConfig
from canopy.models.llama.weights import load_weights
from canopy.models.rope_frequencies import rope_frequencies

CONFIG_FILE = "drafter.json"
WEIGHTS_FILE = "drafter.safetensors"
SURVIVAL_FILE = "survival.json"  # written by `canopy.drafter.block.combined_weights`
_EMBEDDING = "model.embed_tokens.weight"
_LAYER_PARTS = {
    "attention_norm": "input_layernorm",
    "q_proj": "self_attn.q_proj",
    "k_proj": "self_attn.k_proj",
    "v_proj": "self_attn.v_proj",
    "o_proj": "self_attn.o_proj",
    "mlp_norm": "post_attention_layernorm",
    "gate_proj": "mlp.gate_proj",
    "up_proj": "mlp.up_proj",
    "down_proj": "mlp.down_proj",
}


def drafter_folder(model: str) -> Path:
    """The folder that a deployment's `drafter.model` names for a block drafter."""
    return BLOCK_DRAFTER if model == DEFAULT_DRAFTER else Path(model).expanduser()


def drafter_config(
    target_folder: Path,
    draft_vocab_size: int,
    aux_hidden_state_layers: Sequence[int],
    num_layers: int,
) -> BlockDrafterConfig:
    """The configuration of a new drafter for a target."""
    target = ModelConfig.from_folder(target_folder)
    return BlockDrafterConfig(
        target_vocab_size=target.vocab_size,
        target_num_layers=target.num_layers,
        vocabulary=vocabulary_digest(target_folder),
        hidden_size=target.hidden_size,
        intermediate_size=target.intermediate_size,
        num_heads=target.num_heads,
        num_kv_heads=target.num_kv_heads,
        head_dim=target.head_dim,
        rms_norm_eps=target.rms_norm_eps,
        aux_hidden_state_layers=tuple(aux_hidden_state_layers),
        draft_vocab_size=draft_vocab_size,
        num_layers=num_layers,
    )


def new_drafter(
    target_folder: Path,
    config: BlockDrafterConfig,
    draft_ids: torch.Tensor,
    aux_layer_scales: torch.Tensor,
    dropout: float,
) -> BlockDrafter:
    """An untrained drafter; its layers are copies of late layers of the target."""
    target = ModelConfig.from_folder(target_folder)
    weights = load_weights(target_folder, target)
    drafter = BlockDrafter(config, weights[_EMBEDDING].float(), dropout)
    drafter.draft_ids.copy_(draft_ids)
    drafter.aux_layer_scales.copy_(aux_layer_scales)
    frequencies = rope_frequencies(target.rope_theta, target.head_dim, target.rope_scaling)
    drafter.frequencies.copy_(frequencies)
    with torch.no_grad():
        _make_neutral(drafter)
        drafter.norm.weight.copy_(weights["model.norm.weight"])
        for index, layer in enumerate(drafter.layers):
            source = target.num_layers - 2 * (config.num_layers - index)
            _copy_layer(layer, weights, f"model.layers.{max(source, 0)}.")
    return drafter


def _make_neutral(drafter: BlockDrafter) -> None:
    """The context is the last tap; nothing is injected or copied; the Markov head adds nothing."""
    size = drafter.config.hidden_size
    drafter.fuse.weight.zero_()
    drafter.fuse.weight[:, -size:].copy_(torch.eye(size))
    drafter.inject.weight.zero_()
    drafter.copy.weight.zero_()
    drafter.match_lengths.weight.zero_()
    drafter.adapter.weight.copy_(torch.eye(size))
    drafter.markov_out.weight.zero_()
    drafter.markov_row.weight.zero_()
    drafter.masks.normal_(std=float(drafter.embedding.std()))


def _copy_layer(layer: torch.nn.Module, weights: dict[str, torch.Tensor], prefix: str) -> None:
    for part, name in _LAYER_PARTS.items():
        layer.get_parameter(f"{part}.weight").copy_(weights[f"{prefix}{name}.weight"])


def save_drafter(drafter: BlockDrafter, folder: Path) -> None:
    """Write both files; floating-point tensors as bfloat16 but for the small float32 ones."""
    folder.mkdir(parents=True, exist_ok=True)
    stored = {
        name: tensor.detach().cpu().to(torch.bfloat16 if tensor.ndim == 2 else tensor.dtype)
        for name, tensor in drafter.state_dict().items()
    }
    save_file({name: tensor.contiguous() for name, tensor in stored.items()}, folder / WEIGHTS_FILE)
    document = json.dumps(dataclasses.asdict(drafter.config), indent=2)
    (folder / CONFIG_FILE).write_text(document + "\n", encoding="utf-8")
    write_drafter_manifest(folder)


def write_drafter_manifest(folder: Path) -> None:
    """Describe the files that a deployment reads; a training run leaves others beside them."""
    write_manifest(folder, "block drafter", (CONFIG_FILE, WEIGHTS_FILE, SURVIVAL_FILE))


def load_config(folder: Path) -> BlockDrafterConfig:
    """Read `drafter.json`. Raises InvalidDeployment."""
    try:
        raw = json.loads((folder / CONFIG_FILE).read_text(encoding="utf-8"))
        return BlockDrafterConfig(
            **{**raw, "aux_hidden_state_layers": tuple(raw["aux_hidden_state_layers"])}
        )
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise InvalidDeployment(f"{folder} holds no block drafter: {error!r}") from error


def require_made_for(config: BlockDrafterConfig, target_folder: Path) -> None:
    """Raises InvalidDeployment when a drafter belongs to another target."""
    target = ModelConfig.from_folder(target_folder)
    expected = (target.vocab_size, target.num_layers, target.hidden_size)
    found = (config.target_vocab_size, config.target_num_layers, config.hidden_size)
    if found != expected:
        raise InvalidDeployment(
            f"the drafter was made for a target of vocabulary, layers, hidden size {found}, "
            f"{target_folder.name} has {expected}"
        )
    if config.vocabulary != vocabulary_digest(target_folder):
        raise InvalidDeployment(f"the drafter's vocabulary is not that of {target_folder.name}")


def load_drafter(folder: Path, target_folder: Path) -> BlockDrafter:
    """A trained drafter in float32, without dropout. Raises InvalidDeployment."""
    config = load_config(folder)
    require_made_for(config, target_folder)
    drafter = BlockDrafter(config, load_embedding(target_folder))
    try:
        drafter.load_state_dict(load_file(folder / WEIGHTS_FILE))
    except (OSError, SafetensorError, RuntimeError) as error:
        raise InvalidDeployment(f"cannot load {folder / WEIGHTS_FILE}: {error}") from error
    return drafter.eval()


def load_embedding(target_folder: Path) -> torch.Tensor:
    """float32 [vocabulary, E] of a target. Raises InvalidDeployment."""
    single = target_folder / "model.safetensors"
    if single.is_file():
        with safe_open(single, framework="pt") as tensors:
            return tensors.get_tensor(_EMBEDDING).float()
    return load_weights(target_folder, ModelConfig.from_folder(target_folder))[_EMBEDDING].float()
