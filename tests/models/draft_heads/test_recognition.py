"""Heads are recognized by their folder; what does not fit is refused by its name."""

import dataclasses
import json

import pytest
import torch
from golden_heads import GOLDEN, copied, load, target_of
from safetensors.torch import load_file, save_file

from canopy.errors import InvalidDeployment
from canopy.models.config import ModelConfig
from canopy.models.draft_heads import TargetShape, is_draft_head, load_draft_head, read_head_config

TARGET = TargetShape(num_layers=8, hidden_size=64, vocab_size=512)
FOUND = {
    "eagle3-safeai": ("eagle3", "SafeAILab", (2, 4, 5), 256),
    "eagle3-specforge": ("eagle3", "SpecForge", (2, 4, 5), 256),
    "eagle3-speculators": ("eagle3", "speculators", (2, 4, 5), 256),
    "eagle3-deepspec": ("eagle3", "DeepSpec", (1, 2, 4, 6, 7), 512),
    "dspark-deepspec": ("dspark", "DeepSpec", (2, 4, 6), 512),
    "dspark-speculators": ("dspark", "speculators", (2, 4, 6), 256),
    "dflash-zlab": ("dflash", "z-lab", (2, 4, 6), 512),
    "dflash-speculators": ("dflash", "speculators", (2, 4, 6), 256),
}
LAYERS = "transformer_layer_config"


@pytest.mark.parametrize("name", FOUND)
def test_layouts_are_recognized(name):
    assert TargetShape.of(ModelConfig.from_folder(target_of(name))) == TARGET
    assert is_draft_head(GOLDEN / name)
    config = read_head_config(GOLDEN / name, TARGET)
    found = config.algorithm, config.layout, config.target_layers, config.draft_vocab_size
    assert found == FOUND[name]


def test_layers_that_a_file_does_not_name_are_those_of_its_layout(tmp_path):
    named = {"eagle_config": {"eagle_aux_hidden_state_layer_ids": [1, 3, 4]}}
    folder = copied("eagle3-specforge", tmp_path / "a", named)
    assert read_head_config(folder, TARGET).target_layers == (2, 4, 5)
    options = {"dflash_config": {"mask_token_id": 511}}
    folder = copied("dflash-zlab", tmp_path / "b", options)
    assert read_head_config(folder, TARGET).target_layers == (2, 6)
    folder = copied(
        "eagle3-speculators", tmp_path / "c", {"eagle_aux_hidden_state_layer_ids": None}
    )
    assert read_head_config(folder, TARGET).target_layers == (2, 4, 5)


def test_a_model_is_no_head():
    assert not is_draft_head(target_of("dflash-zlab"))


def nested(name, changes):
    raw = json.loads((GOLDEN / name / "config.json").read_text(encoding="utf-8"))
    return {LAYERS: {**raw[LAYERS], **changes}}


MTP = {"architectures": ["DeepSeekMTPModel"], "num_hidden_layers": 2}
WINDOW = nested("eagle3-speculators", {"layer_types": ["sliding_attention"], "sliding_window": 32})
REFUSED = [
    ("eagle3-safeai", MTP, "DeepSeekMTP"),
    ("eagle3-speculators", {"speculators_model_type": "mtp"}, "'mtp'"),
    ("dspark-deepspec", {"architectures": ["Gemma4DSparkModel"]}, "Gemma4DSparkModel"),
    ("dspark-deepspec", {"architectures": ["Qwen3ForCausalLM"]}, "autoregressive"),
    ("dspark-deepspec", {"markov_head_type": "attention"}, "'attention' Markov head"),
    ("dspark-deepspec", {"target_layer_ids": [1, 3, 7]}, "after 0 to 7"),
    ("dspark-deepspec", {"target_layer_ids": [5, 3, 1]}, "ascend"),
    ("dspark-deepspec", {"num_target_layers": 36}, "its layers is 36"),
    ("dflash-zlab", {"hidden_size": 128}, "its hidden size is 128"),
    ("eagle3-specforge", {"vocab_size": 1024}, "its vocabulary is 1024"),
    ("eagle3-specforge", {"target_hidden_size": 32}, "its hidden size is 32"),
    ("eagle3-specforge", {"model_type": "mamba"}, "'mamba'"),
    ("eagle3-speculators", WINDOW, "sliding window"),
    ("dflash-zlab", {"dflash_config": {"mask_token_id": 512}}, "mask token 512"),
    ("dflash-zlab", {"layer_types": ["linear_attention"] * 2}, "linear_attention"),
    ("dflash-zlab", {"dflash_config": {}}, "mask_token_id"),
    ("dflash-zlab", {"dflash_config": 3}, "malformed"),
]


@pytest.mark.parametrize(("name", "changes", "words"), REFUSED)
def test_what_is_not_modelled_is_refused_by_name(name, changes, words, tmp_path):
    with pytest.raises(InvalidDeployment, match=words):
        read_head_config(copied(name, tmp_path, changes), TARGET)


BROKEN = [
    ("eagle3-safeai", {}, ("fc.",), "lacks fc.weight"),
    ("eagle3-safeai", {}, ("d2t",), "lacks their d2t"),
    ("eagle3-safeai", {}, ("lm_head",), "lacks lm_head.weight"),
    ("dspark-deepspec", {}, ("markov_head.markov_w2",), "lacks markov_head.markov_w2.weight"),
    ("dspark-deepspec", {"markov_rank": 0}, (), "unexpected confidence_head|unexpected markov"),
    ("dflash-zlab", {"intermediate_size": 64}, (), "wrong shape of layers.0.mlp"),
    ("eagle3-specforge", {"fc_norm": True}, (), "lacks fc_norm.0.weight"),
]


@pytest.mark.parametrize(("name", "changes", "without", "words"), BROKEN)
def test_missing_and_unexpected_tensors_are_named(name, changes, without, words, tmp_path):
    with pytest.raises(InvalidDeployment, match=words):
        load(name, folder=copied(name, tmp_path, changes, without=without))


def test_a_draft_vocabulary_outside_the_target_is_refused(tmp_path):
    wild = {"d2t": torch.full((256,), 400)}
    with pytest.raises(InvalidDeployment, match="outside"):
        load("eagle3-safeai", folder=copied("eagle3-safeai", tmp_path, extra=wild))


def weights(head):
    return {name: tensor for name, tensor in head.state_dict().items() if "embed" not in name}


def test_pickled_files_are_read_as_safetensors_are(tmp_path):
    folder = copied("eagle3-safeai", tmp_path)
    torch.save(load_file(folder / "model.safetensors"), folder / "pytorch_model.bin")
    (folder / "model.safetensors").unlink()
    expected = weights(load("eagle3-safeai"))
    found = weights(load("eagle3-safeai", folder=folder))
    assert found.keys() == expected.keys()
    assert all(torch.equal(found[name], expected[name]) for name in expected)


def test_what_a_file_leaves_out_is_the_targets(tmp_path):
    folder = copied("dspark-deepspec", tmp_path, without=("embed_tokens", "lm_head"))
    target = load_file(target_of("dspark-deepspec") / "model.safetensors")
    head = load("dspark-deepspec", folder=folder)
    assert torch.equal(head.embed_tokens.weight, target["model.embed_tokens.weight"].float())
    assert torch.equal(head.lm_head.weight, target["lm_head.weight"].float())


def test_a_tied_target_lends_its_embedding_as_head(tmp_path):
    tensors = load_file(target_of("dflash-zlab") / "model.safetensors")
    tied = tmp_path / "tied"
    tied.mkdir()
    save_file(
        {k: t for k, t in tensors.items() if k != "lm_head.weight"}, tied / "model.safetensors"
    )
    raw = json.loads((target_of("dflash-zlab") / "config.json").read_text(encoding="utf-8"))
    (tied / "config.json").write_text(json.dumps({**raw, "tie_word_embeddings": True}))
    head = load_draft_head(GOLDEN / "dflash-zlab", tied, torch.bfloat16, "cpu")
    assert torch.equal(head.lm_head.weight, tensors["model.embed_tokens.weight"])


def test_windows_of_the_speculators_layout(tmp_path):
    changes = nested(
        "dflash-speculators",
        {"layer_types": ["sliding_attention", "full_attention"], "sliding_window": 9},
    )
    config = read_head_config(copied("dflash-speculators", tmp_path, changes), TARGET)
    assert config.windows == (9, 0)
    assert not config.moves_window
    assert config.is_window_causal
    assert dataclasses.replace(config, windows=(0, 0)) == read_head_config(
        GOLDEN / "dflash-speculators", TARGET
    )
