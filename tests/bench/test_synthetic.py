"""A synthetic model is the same in both forms, and int4 takes its weights over as they are."""

from argparse import Namespace

import numpy as np
import pytest
from gguf import GGUFReader, dequantize
from published import write_gguf

from bench.harness.benchmark import Options
from bench.peers import synthetic
from bench.peers.synthetic import Shape, target_models, write_model
from canopy.config import Deployment
from canopy.model_store.gguf_weights import unpermute, weight_name
from canopy.models.config import ModelConfig
from canopy.models.llama.weights import load_weights
from canopy_kernels.int4.layout import unpack_groups
from canopy_kernels.int4.quantize import quantize4, quantize8

SHAPE = Shape(hidden=64, inner=96, num_layers=2, num_heads=4, num_kv_heads=2)


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    home = tmp_path_factory.mktemp("synthetic")
    write_gguf(home / "tiny.gguf")
    write_model(SHAPE, home / "tiny.gguf", home / "model")
    return home / "model"


def test_both_forms_hold_the_same_numbers(home):
    config = ModelConfig.from_folder(home / "folder")
    assert (config.num_layers, config.hidden_size, config.num_kv_heads) == (2, 64, 2)
    weights = load_weights(home / "folder", config)
    heads = {"attn_q": 4, "attn_k": 2}
    tensors = GGUFReader(home / "model.gguf").tensors
    assert len(tensors) == len(weights)
    for tensor in tensors:
        expected = dequantize(tensor.data, tensor.tensor_type)
        if count := heads.get(tensor.name.split(".")[-2]):
            expected = unpermute(expected, count)
        assert np.array_equal(weights[weight_name(tensor.name)].float().numpy(), expected)


def test_int4_changes_no_weight(home):
    weights = load_weights(home / "folder", ModelConfig.from_folder(home / "folder"))
    for name, quantized in (
        ("model.layers.1.mlp.down_proj.weight", quantize4),
        ("model.embed_tokens.weight", quantize8),
    ):
        stored = weights[name].float().numpy()
        levels, scales, minima = (part[: len(stored)] for part in unpack_groups(quantized(stored)))
        groups = levels.reshape(*scales.shape, -1) * scales.astype(np.float32)[..., None]
        restored = groups + minima.astype(np.float32)[..., None]
        assert np.array_equal(restored.reshape(stored.shape), stored)


def test_a_size_takes_the_place_of_the_target(home, tmp_path, monkeypatch):
    monkeypatch.setattr(synthetic, "peers_home", lambda: tmp_path)
    monkeypatch.setattr(synthetic, "gguf_of", lambda *_: home.parent / "tiny.gguf")
    monkeypatch.setitem(synthetic.SHAPES, "1b", SHAPE)

    def models(size):
        return target_models(Options(Deployment(), [], True, Namespace(synthetic=size)))

    assert models(None) == (Deployment(), Deployment().target.model)
    deployment, gguf = models("1b")
    assert (tmp_path / "synthetic-1b" / "model.gguf").samefile(gguf)
    assert (tmp_path / "synthetic-1b" / "folder").samefile(deployment.target.model)
    assert [path.name for path in tmp_path.iterdir()] == ["synthetic-1b"]
