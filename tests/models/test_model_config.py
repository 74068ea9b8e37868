"""Configurations of `transformers` 4 and 5 are read alike; what is not modelled is refused."""

import json

import pytest
import torch
import transformers as hf
from families import FAMILIES, LLAMA3_ROPE, write_family
from safetensors.torch import load_file, save_file

from canopy.errors import InvalidDeployment
from canopy.models.config import ModelConfig
from canopy.models.decoder import load_decoder
from canopy.models.llama.weights import load_weights

MINIMAL = {
    "architectures": ["LlamaForCausalLM"],
    "vocab_size": 10,
    "hidden_size": 8,
    "intermediate_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
    "rms_norm_eps": 1e-5,
}
QWEN2 = {"architectures": ["Qwen2ForCausalLM"], "sliding_window": 32, "max_window_layers": 1}


def read(folder, generation: dict | None = None, **changes) -> ModelConfig:
    (folder / "config.json").write_text(json.dumps(MINIMAL | changes), encoding="utf-8")
    if generation is not None:
        (folder / "generation_config.json").write_text(json.dumps(generation), encoding="utf-8")
    return ModelConfig.from_folder(folder)


@pytest.mark.parametrize("name", FAMILIES)
def test_what_transformers_writes_is_read_back(name, tmp_path):
    model = write_family(name, tmp_path)
    config = ModelConfig.from_folder(tmp_path)
    assert config.num_layers == model.config.num_hidden_layers
    assert config.num_kv_heads == model.config.num_key_value_heads
    assert config.rope_theta == model.config.rope_parameters["rope_theta"]
    assert config.tie_word_embeddings == model.config.tie_word_embeddings
    assert config.qkv_bias == (model.model.layers[0].self_attn.q_proj.bias is not None)
    assert config.max_position_embeddings == model.config.max_position_embeddings


def test_old_and_new_rope_keys_mean_the_same(tmp_path):
    scaling = {key: value for key, value in LLAMA3_ROPE.items() if key != "rope_theta"}
    new = read(tmp_path, rope_parameters=LLAMA3_ROPE | {"rope_theta": 5e5})
    assert read(tmp_path, rope_scaling=scaling, rope_theta=5e5) == new
    assert new.rope_scaling is not None
    plain = read(tmp_path, rope_parameters={"rope_type": "default", "rope_theta": 7e4})
    assert read(tmp_path, rope_scaling=None, rope_theta=7e4) == plain
    assert read(tmp_path).rope_theta == 10000.0


def test_rope_scaling_beside_rope_parameters_counts_as_in_transformers(tmp_path):
    both = {
        "rope_parameters": {"rope_type": "default", "rope_theta": 5e5},
        "rope_scaling": {key: value for key, value in LLAMA3_ROPE.items() if key != "rope_theta"},
        "rope_theta": 2e4,
    }
    config = read(tmp_path, model_type="llama", **both)
    theirs = hf.AutoConfig.from_pretrained(tmp_path).rope_parameters
    assert (config.rope_theta, config.rope_scaling.factor) == (theirs["rope_theta"], 8.0)
    linear = read(tmp_path, **both | {"rope_scaling": {"type": "linear", "factor": 2.0}})
    assert linear.rope_scaling.factor == 2.0


@pytest.mark.parametrize(
    "changes",
    [
        {"quantization_config": None},
        {"rope_scaling": {"type": "linear", "factor": 1.0}},
        {"rope_scaling": {"rope_type": None, "type": "default"}},
        {"num_experts": 0, "final_logit_softcapping": None, "residual_multiplier": 1.0},
    ],
)
def test_keys_that_change_nothing_are_accepted(tmp_path, changes):
    assert read(tmp_path, **changes) == read(tmp_path)


def test_end_of_sequence_ids_of_both_files_are_joined(tmp_path):
    assert read(tmp_path).eos_token_ids == ()
    assert read(tmp_path, eos_token_id=7).eos_token_ids == (7,)
    both = read(tmp_path, {"eos_token_id": [2, 7]}, eos_token_id=5)
    assert both.eos_token_ids == (2, 5, 7)


def test_heads_default_to_plain_attention_over_the_hidden_size(tmp_path):
    config = read(tmp_path, num_key_value_heads=None, head_dim=None)
    assert (config.num_kv_heads, config.head_dim) == (4, 2)


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"architectures": ["MixtralForCausalLM"]}, "MixtralForCausalLM"),
        ({"architectures": [], "model_type": "gemma"}, "gemma"),
        ({"architectures": ["MistralForCausalLM"], "sliding_window": 32}, "sliding window"),
        ({"architectures": ["MistralForCausalLM"], "max_position_embeddings": 8192}, "4096"),
        (QWEN2 | {"use_sliding_window": True}, "sliding window"),
        ({"rope_scaling": {"type": "longrope", "factor": 4.0}}, "longrope"),
        ({"rope_scaling": {"rope_type": "llama3"}}, "factor"),
        ({"partial_rotary_factor": 0.5}, "partial"),
        ({"hidden_act": "gelu"}, "gelu"),
        ({"quantization_config": {"bits": 4}}, "quantization_config"),
        ({"rope_scaling": {"type": "linear"}}, "factor"),
        ({"dual_chunk_attention_config": {"chunk_size": 64}}, "dual_chunk_attention_config"),
        ({"num_local_experts": 8}, "num_local_experts"),
        ({"rope_parameters": {"full_attention": {"rope_theta": 5e5}}}, "full_attention"),
        ({"eos_token_id": "</s>"}, "malformed"),
        ({"final_logit_softcapping": 30.0}, "final_logit_softcapping"),
        ({"residual_multiplier": 0.2}, "residual_multiplier"),
        ({"num_key_value_heads": 3}, "num_key_value_heads"),
        ({"vocab_size": "many"}, "malformed"),
    ],
)
def test_what_is_not_modelled_is_refused_by_name(tmp_path, changes, named):
    with pytest.raises(InvalidDeployment, match=named):
        read(tmp_path, **changes)


@pytest.mark.parametrize(
    "changes",
    [
        {"architectures": ["MistralForCausalLM"], "sliding_window": None},
        {"architectures": ["MistralForCausalLM"], "sliding_window": 64},
        QWEN2 | {"use_sliding_window": False},
        QWEN2 | {"use_sliding_window": True, "max_window_layers": 2},
        QWEN2 | {"use_sliding_window": True, "layer_types": ["full_attention"] * 2},
    ],
)
def test_a_window_that_never_closes_is_accepted(tmp_path, changes):
    assert read(tmp_path, **changes).num_layers == 2


def test_a_folder_without_a_readable_configuration_is_refused(tmp_path):
    with pytest.raises(InvalidDeployment, match=r"config\.json"):
        ModelConfig.from_folder(tmp_path)
    (tmp_path / "config.json").write_text("{", encoding="utf-8")
    with pytest.raises(InvalidDeployment, match=r"config\.json"):
        ModelConfig.from_folder(tmp_path)
    (tmp_path / "config.json").write_text("{}", encoding="utf-8")
    with pytest.raises(InvalidDeployment, match="supported"):
        ModelConfig.from_folder(tmp_path)


@pytest.mark.parametrize(
    ("change", "named"),
    [
        (lambda w: w.pop("model.layers.1.mlp.up_proj.weight"), "lacks model.layers.1.mlp.up_proj"),
        (lambda w: w.update({"model.layers.2.x": torch.zeros(1)}), "unexpected model.layers.2.x"),
        (lambda w: w.update({"model.norm.weight": torch.zeros(3)}), "shape of model.norm.weight"),
    ],
)
def test_tensors_that_do_not_fit_are_named(tmp_path, change, named):
    write_family("llama2", tmp_path)
    weights = load_file(tmp_path / "model.safetensors")
    change(weights)
    save_file(weights, tmp_path / "model.safetensors")
    with pytest.raises(InvalidDeployment, match=named):
        load_decoder(tmp_path, "float32", "cpu")


def test_tensors_that_follow_from_the_configuration_are_passed_over(tmp_path):
    write_family("smollm2", tmp_path)
    weights = load_file(tmp_path / "model.safetensors")
    weights["lm_head.weight"] = weights["model.embed_tokens.weight"].clone()
    weights["model.layers.0.self_attn.rotary_emb.inv_freq"] = torch.zeros(4)
    save_file(weights, tmp_path / "model.safetensors")
    assert load_decoder(tmp_path, "float32", "cpu").config.tie_word_embeddings


@pytest.mark.parametrize("dtype", ["float32", "int8"])
def test_a_head_that_differs_from_a_tied_embedding_counts_as_in_transformers(tmp_path, dtype):
    write_family("smollm2", tmp_path)
    weights = load_file(tmp_path / "model.safetensors")
    weights["lm_head.weight"] = weights["model.embed_tokens.weight"].flip(0).contiguous()
    save_file(weights, tmp_path / "model.safetensors", {"format": "pt"})
    theirs = hf.AutoModelForCausalLM.from_pretrained(tmp_path)
    assert torch.equal(theirs.lm_head.weight, weights["lm_head.weight"])
    assert not load_decoder(tmp_path, dtype, "cpu").config.tie_word_embeddings


def test_a_tied_embedding_may_be_stored_under_the_name_of_the_head(tmp_path):
    write_family("smollm2", tmp_path)
    weights = load_file(tmp_path / "model.safetensors")
    embedding = weights.pop("model.embed_tokens.weight")
    save_file(weights | {"lm_head.weight": embedding}, tmp_path / "model.safetensors")
    loaded = load_weights(tmp_path, ModelConfig.from_folder(tmp_path))
    assert torch.equal(loaded["model.embed_tokens.weight"], embedding)


@pytest.mark.parametrize(
    "content", [None, "{", "[]", '{"weight_map": {"a": "absent.safetensors"}}']
)
def test_missing_or_damaged_weight_files_are_refused(tmp_path, content):
    write_family("llama2", tmp_path)
    (tmp_path / "model.safetensors").unlink()
    if content is not None:
        (tmp_path / "model.safetensors.index.json").write_text(content, encoding="utf-8")
    with pytest.raises(InvalidDeployment, match="safetensors"):
        load_decoder(tmp_path, "float32", "cpu")
