"""Which head a folder holds. What is not known is refused by its name."""

from pathlib import Path
from typing import Any

from canopy.errors import InvalidDeployment
from canopy.models.config import read_json
from canopy.models.draft_heads.config import BlockHeadConfig, HeadConfig, TargetShape
from canopy.models.draft_heads.layouts import (
    deepspec_dspark,
    deepspec_eagle3,
    safeai_eagle3,
    specforge_eagle3,
    zlab_dflash,
)
from canopy.models.draft_heads.speculators import (
    speculators_dflash,
    speculators_dspark,
    speculators_eagle3,
)

_BY_ARCHITECTURE = {
    "LlamaForCausalLMEagle3": specforge_eagle3,
    "Qwen3Eagle3Model": deepspec_eagle3,
    "Qwen3DSparkModel": deepspec_dspark,
    "DFlashDraftModel": zlab_dflash,
}
_BY_SPECULATORS_TYPE = {
    "eagle3": speculators_eagle3,
    "dspark": speculators_dspark,
    "dflash": speculators_dflash,
}
_KNOWN = (
    "Canopy runs EAGLE-3 (SafeAILab, SpecForge, speculators, DeepSpec), DSpark (DeepSpec, "
    "speculators) and DFlash (z-lab, speculators)"
)


def is_draft_head(folder: Path) -> bool:
    """Whether a folder's `config.json` speaks of a head, known here or not, and not of a model.

    Raises InvalidDeployment for a missing or malformed file.
    """
    raw = read_json(folder / "config.json")
    name = _name(raw)
    is_model = name.endswith(("ForCausalLM", "ForConditionalGeneration", "LMHeadModel"))
    return "draft_vocab_size" in raw or "speculators_model_type" in raw or not is_model


def read_head_config(folder: Path, target: TargetShape) -> HeadConfig:
    """Recognize a head and read its configuration.

    Raises InvalidDeployment for what is no head or an unknown one, for one that was made for
    another target, and for a feature that is not modelled.
    """
    raw = read_json(folder / "config.json")
    try:
        config = _parser(raw)(raw, target)
        _require_made_for(config, raw, target)
    except KeyError as error:
        raise InvalidDeployment(f"{folder / 'config.json'} lacks {error}") from error
    except (TypeError, ValueError, AttributeError) as error:
        raise InvalidDeployment(f"{folder / 'config.json'} is malformed: {error}") from error
    except InvalidDeployment as error:
        raise InvalidDeployment(f"{folder.name}: {error.args[0]}") from error
    return config


def _parser(raw: dict[str, Any]) -> Any:
    if kind := raw.get("speculators_model_type"):
        if kind not in _BY_SPECULATORS_TYPE:
            raise InvalidDeployment(f"a {kind!r} head of speculators is not supported: {_KNOWN}")
        return _BY_SPECULATORS_TYPE[kind]
    name = _name(raw)
    if name in _BY_ARCHITECTURE:
        return _BY_ARCHITECTURE[name]
    if "draft_vocab_size" in raw and raw.get("num_hidden_layers") == 1:
        return safeai_eagle3
    advice = ""
    if name.endswith("ForCausalLM"):
        advice = '; a small language model is a drafter of drafter.source = "autoregressive"'
    raise InvalidDeployment(f"{name} is no supported draft head: {_KNOWN}{advice}")


def _name(raw: dict[str, Any]) -> str:
    """What a configuration calls its model."""
    named = raw.get("architectures") or [raw.get("model_type") or "a folder without architectures"]
    return str(named[0])


def _require_made_for(config: HeadConfig, raw: dict[str, Any], target: TargetShape) -> None:
    """Every number that a head and its target share."""
    shared = {
        "hidden size": (config.target_hidden_size, target.hidden_size),
        "vocabulary": (config.backbone.vocab_size, target.vocab_size),
        "layers": (raw.get("num_target_layers") or target.num_layers, target.num_layers),
    }
    for name, (found, expected) in shared.items():
        if found != expected:
            raise InvalidDeployment(
                f"the head was made for another target: its {name} is {found}, the target's is "
                f"{expected}; choose the head that was trained for this model"
            )
    layers = config.target_layers
    if list(layers) != sorted(set(layers)) or not layers:
        raise InvalidDeployment(f"its target layers {list(layers)} do not ascend")
    if layers[0] < 0 or layers[-1] >= target.num_layers:
        raise InvalidDeployment(
            f"it reads the states after {list(layers)} layers of the target, which gives those "
            f"after 0 to {target.num_layers - 1}"
        )
    if config.draft_vocab_size > config.backbone.vocab_size:
        raise InvalidDeployment("its draft vocabulary is larger than the target's")
    if isinstance(config, BlockHeadConfig) and config.mask_token_id >= target.vocab_size:
        raise InvalidDeployment(f"its mask token {config.mask_token_id} is none of the target's")
