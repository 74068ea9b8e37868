"""The configurations of heads outside the speculators package, each in its own layout.

Two numberings of target layers are in use: the input of layer k (SafeAILab), which is the state
after k layers, and its output (SpecForge, DeepSpec, z-lab), which is the state after k + 1.
"""

from collections.abc import Sequence
from typing import Any

from canopy.errors import InvalidDeployment
from canopy.models.config import ModelConfig
from canopy.models.draft_heads.config import BlockHeadConfig, Eagle3Config, TargetShape

_WINDOW_KEYS = ("sliding_window", "use_sliding_window", "layer_types", "max_window_layers")
_ARCHITECTURES = {"llama": "LlamaForCausalLM", "qwen3": "Qwen3ForCausalLM"}


def safeai_eagle3(raw: dict[str, Any], target: TargetShape) -> Eagle3Config:
    """An ordinary Llama configuration and `draft_vocab_size`; `head_dim` is not read."""
    plain = {k: v for k, v in raw.items() if k not in ("head_dim", "attention_bias", "mlp_bias")}
    return Eagle3Config(
        algorithm="eagle3",
        layout="SafeAILab",
        backbone=backbone_config({**plain, "model_type": "llama"}),
        target_layers=default_eagle3_layers(target),
        target_hidden_size=raw.get("target_hidden_size") or raw["hidden_size"],
        draft_vocab_size=raw["draft_vocab_size"],
    )


def specforge_eagle3(raw: dict[str, Any], target: TargetShape) -> Eagle3Config:
    """Served by SGLang, too."""
    refuse_window(raw)
    named = (raw.get("eagle_config") or {}).get("eagle_aux_hidden_state_layer_ids")
    return Eagle3Config(
        algorithm="eagle3",
        layout="SpecForge",
        backbone=backbone_config(raw),
        target_layers=_after(named) if named else default_eagle3_layers(target),
        target_hidden_size=raw.get("target_hidden_size") or raw["hidden_size"],
        draft_vocab_size=raw.get("draft_vocab_size") or raw["vocab_size"],
        norms_each_state=bool(raw.get("fc_norm", False)),
        norms_logits=bool(raw.get("norm_output", True)),
    )


def deepspec_eagle3(raw: dict[str, Any], target: TargetShape) -> Eagle3Config:
    """A Qwen3 layer and the whole vocabulary."""
    refuse_window(raw)
    return Eagle3Config(
        algorithm="eagle3",
        layout="DeepSpec",
        backbone=backbone_config(raw),
        target_layers=_after(raw["target_layer_ids"]),
        target_hidden_size=raw["hidden_size"],
        draft_vocab_size=raw["vocab_size"],
    )


def deepspec_dspark(raw: dict[str, Any], target: TargetShape) -> BlockHeadConfig:
    """With `markov_rank` 0 this is what DeepSpec publishes as DFlash: same slots, marginals."""
    return BlockHeadConfig(
        algorithm="dspark" if raw.get("markov_rank") else "dflash",
        layout="DeepSpec",
        backbone=backbone_config(raw),
        target_layers=_after(raw["target_layer_ids"]),
        target_hidden_size=raw["hidden_size"],
        draft_vocab_size=raw["vocab_size"],
        block_size=raw["block_size"],
        mask_token_id=raw["mask_token_id"],
        windows=layer_windows(raw),
        **head_options(raw),
    )


def zlab_dflash(raw: dict[str, Any], target: TargetShape) -> BlockHeadConfig:
    """Slot j predicts the token at its own position, so that the anchor's slot is unused."""
    options = raw.get("dflash_config") or {}
    named = options.get("target_layer_ids") or _spread_layers(target, raw["num_hidden_layers"])
    return BlockHeadConfig(
        algorithm="dflash",
        layout="z-lab",
        backbone=backbone_config(raw),
        target_layers=_after(named),
        target_hidden_size=raw["hidden_size"],
        draft_vocab_size=raw["vocab_size"],
        block_size=options.get("block_size") or raw["block_size"],
        mask_token_id=options["mask_token_id"],
        first_slot=1,
        windows=layer_windows(raw),
    )


def backbone_config(raw: dict[str, Any]) -> ModelConfig:
    """The head's own layers. Raises InvalidDeployment for a kind of layer that is not known."""
    kind = raw.get("model_type")
    if kind not in _ARCHITECTURES:
        raise InvalidDeployment(f"layers of {kind!r} are not supported in a head: llama, qwen3")
    plain = {k: v for k, v in raw.items() if k not in _WINDOW_KEYS}
    return ModelConfig.of_values({**plain, "architectures": [_ARCHITECTURES[kind]]})


def default_eagle3_layers(target: TargetShape) -> tuple[int, ...]:
    """Early, middle and late."""
    return 2, target.num_layers // 2, target.num_layers - 3


def head_options(raw: dict[str, Any]) -> dict[str, Any]:
    """Of DSpark's Markov and confidence heads, alike in all layouts."""
    rank, kind = raw.get("markov_rank") or 0, raw.get("markov_head_type", "vanilla")
    if rank and kind not in ("vanilla", "gated", "rnn"):
        raise InvalidDeployment(f"a {kind!r} Markov head is not supported: vanilla, gated, rnn")
    return {
        "markov": kind if rank else "",
        "markov_rank": rank,
        "has_confidence": bool(raw.get("enable_confidence_head", False)),
        "confidence_reads_parent": bool(rank and raw.get("confidence_head_with_markov", False)),
    }


def layer_windows(raw: dict[str, Any]) -> tuple[int, ...]:
    """How far each layer sees; 0: everywhere."""
    backend = raw.get("layer_types") or ["full_attention"] * raw["num_hidden_layers"]
    for kind in backend:
        if kind not in ("full_attention", "sliding_attention"):
            raise InvalidDeployment(f"layers of {kind!r} are not supported in a head")
    return tuple(raw["sliding_window"] if kind == "sliding_attention" else 0 for kind in backend)


def refuse_window(raw: dict[str, Any]) -> None:
    """EAGLE-3 with a sliding window is not modelled. Raises InvalidDeployment."""
    if any(layer_windows(raw)) or (raw.get("use_sliding_window") and raw.get("sliding_window")):
        raise InvalidDeployment("a sliding window is not supported in an EAGLE-3 head")


def _after(outputs: Sequence[int]) -> tuple[int, ...]:
    return tuple(layer + 1 for layer in outputs)


def _spread_layers(target: TargetShape, num_layers: int) -> list[int]:
    if num_layers == 1:
        return [target.num_layers // 2]
    first, last = 1, target.num_layers - 3
    return [round(first + i * (last - first) / (num_layers - 1)) for i in range(num_layers)]
