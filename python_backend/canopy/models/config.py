"""The shape of a decoder, read from the `config.json` of a Hugging Face folder.

One set of fields covers the Llama family; a model family is what it fixes and what it reads:

    family                  q/k/v bias      o bias          mlp bias   q/k norm   window switch
    Llama 2/3, SmolLM2      attention_bias  attention_bias  mlp_bias   no         none
    Mistral                 no              no              no         no         sliding_window
    Qwen2, Qwen2.5          yes             no              no         no         use_sliding_window
    Qwen3                   attention_bias  attention_bias  no         yes        use_sliding_window

Sources: the configuration classes of `transformers`, versions 4 (`rope_theta`, `rope_scaling`)
and 5 (`rope_parameters`); where a file has both, `rope_scaling` counts. A feature that is not
modelled here is refused, never ignored.
"""

import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from canopy.errors import InvalidDeployment
from canopy.models.rope import RopeScaling, linear_scaling, llama3_scaling, yarn_scaling
from canopy.models.tied_head import has_own_head

ARCHITECTURES = {
    "LlamaForCausalLM": "llama",
    "MistralForCausalLM": "mistral",
    "Qwen2ForCausalLM": "qwen2",
    "Qwen3ForCausalLM": "qwen3",
}
ROPE_TYPES = ("default", "linear", "dynamic", "llama3", "yarn")
DEFAULT_WINDOW = 4096  # of a file that names no sliding_window
# Keys that change what a model computes, and the values with which they change nothing.
_OFF: tuple[Any, ...] = (None, False, 0, [], {})
_NEUTRAL: dict[str, tuple[Any, ...]] = {
    "dual_chunk_attention_config": _OFF,
    "attention_chunk_size": _OFF,
    "num_experts": _OFF,
    "num_local_experts": (*_OFF, 1),
    "n_routed_experts": _OFF,
    "moe_intermediate_size": _OFF,
    "attn_logit_softcapping": _OFF,
    "final_logit_softcapping": _OFF,
    "router_logit_softcapping": _OFF,
    "query_pre_attn_scalar": _OFF,
    "embedding_multiplier": (*_OFF, 1),
    "attention_multiplier": (*_OFF, 1),
    "residual_multiplier": (*_OFF, 1),
    "logits_scaling": (*_OFF, 1),
    "logit_scale": (*_OFF, 1),
    "scale_emb": (*_OFF, 1),
    "scale_depth": _OFF,
    "no_rope_layers": _OFF,
    "no_rope_layer_interval": _OFF,
    "clip_qkv": _OFF,
    "use_parallel_residual": _OFF,
    "quantization_config": _OFF,
    "compression_config": _OFF,
    "add_cross_attention": _OFF,
}


@dataclass(frozen=True)
class ModelConfig:
    """Everything that the layers, the cache and the parser need to know about a model."""

    family: str
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    max_position_embeddings: int
    rms_norm_eps: float
    rope_theta: float
    rope_scaling: RopeScaling | None
    qkv_bias: bool
    output_bias: bool
    mlp_bias: bool
    qk_norm: bool
    tie_word_embeddings: bool
    eos_token_ids: tuple[int, ...]

    @staticmethod
    def from_folder(folder: str | Path) -> "ModelConfig":
        """Read `config.json` and, where there is one, `generation_config.json`.

        Raises InvalidDeployment for a missing or malformed file and for anything unsupported.
        """
        folder = Path(folder)
        raw = read_json(folder / "config.json")
        generation = folder / "generation_config.json"
        sources = [raw, read_json(generation)] if generation.exists() else [raw]
        try:
            config = _parse(raw, _eos_token_ids(sources))
            if config.tie_word_embeddings and has_own_head(folder):
                return replace(config, tie_word_embeddings=False)
            return config
        except KeyError as error:
            raise InvalidDeployment(f"{folder / 'config.json'} lacks {error}") from error
        except (TypeError, ValueError) as error:
            raise InvalidDeployment(f"{folder / 'config.json'} is malformed: {error}") from error

    @staticmethod
    def of_values(raw: dict[str, Any]) -> "ModelConfig":
        """The same of a parsed file, without end-of-sequence ids.

        Raises InvalidDeployment for anything unsupported, KeyError for a missing entry.
        """
        return _parse(raw, ())


def _parse(raw: dict[str, Any], eos_token_ids: tuple[int, ...]) -> ModelConfig:
    family = _family(raw)
    _refuse_unsupported(raw, family)
    theta, scaling = _rope(raw)
    num_heads = int(raw["num_attention_heads"])
    num_kv_heads = int(raw.get("num_key_value_heads") or num_heads)
    _require(num_heads % num_kv_heads == 0, "num_key_value_heads must divide num_attention_heads")
    configurable_bias = family in ("llama", "qwen3") and bool(raw.get("attention_bias", False))
    return ModelConfig(
        family=family,
        vocab_size=int(raw["vocab_size"]),
        hidden_size=int(raw["hidden_size"]),
        intermediate_size=int(raw["intermediate_size"]),
        num_layers=int(raw["num_hidden_layers"]),
        num_heads=num_heads,
        num_kv_heads=num_kv_heads,
        head_dim=int(raw.get("head_dim") or raw["hidden_size"] // num_heads),
        max_position_embeddings=int(raw["max_position_embeddings"]),
        rms_norm_eps=float(raw["rms_norm_eps"]),
        rope_theta=theta,
        rope_scaling=scaling,
        qkv_bias=configurable_bias or family == "qwen2",
        output_bias=configurable_bias,
        mlp_bias=family == "llama" and bool(raw.get("mlp_bias", False)),
        qk_norm=family == "qwen3",
        tie_word_embeddings=bool(raw.get("tie_word_embeddings", False)),
        eos_token_ids=eos_token_ids,
    )


def _family(raw: dict[str, Any]) -> str:
    known = ", ".join(ARCHITECTURES)
    named = raw.get("architectures") or []
    for architecture in named:
        _require(architecture in ARCHITECTURES, f"{architecture} is not one of {known}")
    family = ARCHITECTURES[named[0]] if named else raw.get("model_type")
    _require(
        family in ARCHITECTURES.values(), f"model_type {family!r} is of no supported model: {known}"
    )
    return str(family)


def _refuse_unsupported(raw: dict[str, Any], family: str) -> None:
    activation = raw.get("hidden_act", "silu")
    _require(activation == "silu", f"hidden_act {activation!r} is not supported, only silu")
    for name, neutral in _NEUTRAL.items():
        _require(raw.get(name) in neutral, f"{name} = {str(raw.get(name))[:80]} is not supported")
    _require(
        not _window_in_use(raw, family),
        f"a sliding window ({raw.get('sliding_window', DEFAULT_WINDOW)} tokens) is not supported",
    )


def _window_in_use(raw: dict[str, Any], family: str) -> bool:
    window = raw.get("sliding_window", DEFAULT_WINDOW)
    if family == "llama" or window is None or window >= raw["max_position_embeddings"]:
        return False
    if family == "mistral":
        return True
    if not raw.get("use_sliding_window", False):
        return False
    if layer_types := raw.get("layer_types"):
        return "sliding_attention" in layer_types
    return bool(raw.get("max_window_layers", 28) < raw["num_hidden_layers"])


def _rope(raw: dict[str, Any]) -> tuple[float, RopeScaling | None]:
    rope = raw.get("rope_scaling") or raw.get("rope_parameters") or {}
    nested = [name for name, value in rope.items() if isinstance(value, dict)]
    _require(
        not nested, f"rope parameters by kind of layer ({', '.join(nested)}) are not supported"
    )
    theta = float(rope.get("rope_theta", raw.get("rope_theta", 10000.0)))
    kind = rope.get("rope_type") or rope.get("type") or "default"
    rotated = rope.get("partial_rotary_factor", raw.get("partial_rotary_factor", 1.0))
    _require(rotated == 1.0, "partial rope (partial_rotary_factor) is not supported")
    _require(kind in ROPE_TYPES, f"rope type {kind!r} is not supported: {', '.join(ROPE_TYPES)}")
    return theta, _scaling(str(kind), raw, rope)


def _scaling(kind: str, raw: dict[str, Any], rope: dict[str, Any]) -> RopeScaling | None:
    """Dynamic scaling starts where `max_position_embeddings` ends, so nothing here needs it."""
    if kind == "linear":
        return linear_scaling(rope)
    if kind == "llama3":
        return llama3_scaling(rope)
    if kind == "yarn":
        name, longest = "original_max_position_embeddings", int(raw["max_position_embeddings"])
        return yarn_scaling(rope, int(raw.get(name) or rope.get(name) or longest), longest)
    return None


def _eos_token_ids(sources: list[dict[str, Any]]) -> tuple[int, ...]:
    """Every end-of-sequence id that any of the files names, ascending."""
    ids: list[int] = []
    for source in sources:
        named = source.get("eos_token_id")
        ids += named if isinstance(named, list) else [] if named is None else [named]
    return tuple(sorted({int(token_id) for token_id in ids}))


def read_json(path: Path) -> dict[str, Any]:
    """The object in a file. Raises InvalidDeployment."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise InvalidDeployment(f"cannot read {path}: {error}") from error
    if not isinstance(content, dict):
        raise InvalidDeployment(f"{path} does not hold a JSON object")
    return content


def _require(condition: bool, message: str) -> None:
    if not condition:
        raise InvalidDeployment(message)
