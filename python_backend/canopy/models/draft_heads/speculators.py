"""The configurations of heads in the layout of the speculators package, which vLLM serves.

Options of the head stand at the top, those of its layers in `transformer_layer_config`. Target
layers are numbered by their input.
"""

from typing import Any

from canopy.models.draft_heads.config import BlockHeadConfig, Eagle3Config, TargetShape
from canopy.models.draft_heads.layouts import (
    backbone_config,
    default_eagle3_layers,
    head_options,
    layer_windows,
    refuse_window,
)


def speculators_eagle3(raw: dict[str, Any], target: TargetShape) -> Eagle3Config:
    """A missing `norm_before_residual` is true, as vLLM reads it."""
    refuse_window(raw["transformer_layer_config"])
    named = raw.get("eagle_aux_hidden_state_layer_ids")
    return Eagle3Config(
        **_common(raw),
        target_layers=tuple(named) if named else default_eagle3_layers(target),
        norms_residual=bool(raw.get("norm_before_residual", True)),
        norms_features=bool(raw.get("norm_before_fc", False)),
        norms_each_state=bool(raw.get("fc_norm", False)),
        feeds_back_normed=bool(raw.get("norm_output", False)),
    )


def speculators_dspark(raw: dict[str, Any], target: TargetShape) -> BlockHeadConfig:
    """Slots begin at the anchor's own unless the file says otherwise."""
    return BlockHeadConfig(**_block(raw, samples_from_anchor=True), **head_options(raw))


def speculators_dflash(raw: dict[str, Any], target: TargetShape) -> BlockHeadConfig:
    """Marginals; the anchor's own slot is unused unless the file says otherwise."""
    return BlockHeadConfig(**_block(raw, samples_from_anchor=False))


def _block(raw: dict[str, Any], samples_from_anchor: bool) -> dict[str, Any]:
    samples_from_anchor = raw.get("sample_from_anchor", samples_from_anchor)
    return {
        **_common(raw),
        "target_layers": tuple(raw["aux_hidden_state_layer_ids"]),
        "block_size": raw["block_size"],
        "mask_token_id": raw["mask_token_id"],
        "first_slot": 0 if samples_from_anchor else 1,
        "windows": layer_windows(raw["transformer_layer_config"]),
        "moves_window": False,
        "is_window_causal": not raw.get("sliding_window_non_causal", False),
    }


def _common(raw: dict[str, Any]) -> dict[str, Any]:
    layers = raw["transformer_layer_config"]
    return {
        "algorithm": raw["speculators_model_type"],
        "layout": "speculators",
        "backbone": backbone_config(layers),
        "target_hidden_size": raw.get("target_hidden_size") or layers["hidden_size"],
        "draft_vocab_size": raw.get("draft_vocab_size") or layers["vocab_size"],
    }
