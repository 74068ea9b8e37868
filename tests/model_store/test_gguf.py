"""A converted GGUF is the same model and the same tokenizer."""

import json

import numpy as np
import pytest
from gguf import GGUFReader
from hypothesis import given
from hypothesis import strategies as st
from published import HEADS, HIDDEN, write_gguf
from safetensors.numpy import load_file
from tokenizers import Tokenizer

from canopy.errors import InvalidDeployment
from canopy.model_store.gguf_tokenizer import write_tokenizer
from canopy.model_store.gguf_weights import (
    read_metadata,
    unpermute,
    weight_name,
    write_config,
    write_weights,
)


@pytest.fixture(scope="module")
def converted(tmp_path_factory):
    folder = tmp_path_factory.mktemp("converted")
    meaning = write_gguf(folder / "tiny.gguf")
    reader = GGUFReader(folder / "tiny.gguf")
    write_config(reader, folder, {"temperature": 0.2, "top_p": 0.9})
    write_tokenizer(read_metadata(reader), folder)
    write_weights(reader, folder, lambda *_: None)
    return folder, meaning


def test_what_the_makers_recommend_stands_in_the_folder(converted):
    recommended = json.loads((converted[0] / "generation_config.json").read_text())
    assert (recommended["temperature"], recommended["top_p"]) == (0.2, 0.9)


def rotate_interleaved(x: np.ndarray, angles: np.ndarray) -> np.ndarray:
    """Rope on neighbouring pairs: x [heads, d], angles [d / 2]."""
    even, odd = x[:, ::2], x[:, 1::2]
    pairs = (
        even * np.cos(angles) - odd * np.sin(angles),
        odd * np.cos(angles) + even * np.sin(angles),
    )
    return np.stack(pairs, -1).reshape(x.shape)


def rotate_halves(x: np.ndarray, angles: np.ndarray) -> np.ndarray:
    """Rope on halves, as Hugging Face does it."""
    first, second = np.split(x, 2, axis=1)
    return np.concatenate(
        (
            first * np.cos(angles) - second * np.sin(angles),
            second * np.cos(angles) + first * np.sin(angles),
        ),
        axis=1,
    )


def test_attention_scores_are_the_same_in_either_rope_layout():
    rng = np.random.default_rng(0)
    head_dim = HIDDEN // HEADS
    query, key = rng.normal(size=(2, HIDDEN, HIDDEN))
    x = rng.normal(size=(2, HIDDEN))
    angles = rng.normal(size=(2, head_dim // 2))

    def scores(rotate, layout):
        q = rotate((layout(query) @ x[0]).reshape(HEADS, head_dim), angles[0])
        k = rotate((layout(key) @ x[1]).reshape(HEADS, head_dim), angles[1])
        return (q * k).sum(axis=1)

    interleaved = scores(rotate_interleaved, lambda rows: rows)
    halves = scores(rotate_halves, lambda rows: unpermute(rows, HEADS))
    np.testing.assert_allclose(halves, interleaved, rtol=1e-10)


def test_every_weight_is_found_under_its_hugging_face_name_within_a_quantization_step(converted):
    folder, meaning = converted
    weights = load_file(folder / "model.safetensors")
    assert set(weights) == {weight_name(name) for name in meaning}
    for name, values in meaning.items():
        loaded = weights[weight_name(name)]
        if name.endswith(("attn_q.weight", "attn_k.weight")):
            values = unpermute(values, HEADS if "attn_q" in name else HEADS // 2)
        assert loaded.dtype == np.float32
        step = 0 if values.ndim == 1 else np.ptp(values) / 15
        assert np.abs(loaded - values).max() <= step / 2 + 1e-2


def test_the_converted_folder_loads_and_runs_in_transformers(converted):
    import torch
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(converted[0], dtype=torch.float32)
    logits = model(torch.tensor([[1, 5, 9]])).logits
    assert logits.shape[:2] == (1, 3)
    assert torch.isfinite(logits).all()
    assert model.config.tie_word_embeddings


@given(st.text(max_size=40))
def test_any_text_survives_the_tokenizer(converted, text):
    tokenizer = Tokenizer.from_file(str(converted[0] / "tokenizer.json"))
    ids = tokenizer.encode(text, add_special_tokens=False).ids
    if not any(special in text for special in ("<unk>", "<start>", "<end>")):
        assert tokenizer.decode(ids) == text


def test_merges_apply_digits_stand_alone_and_special_tokens_are_whole(converted):
    tokenizer = Tokenizer.from_file(str(converted[0] / "tokenizer.json"))
    assert tokenizer.encode("he").tokens == ["he"]
    assert tokenizer.encode("<start>1<end>").tokens == ["<start>", "1", "<end>"]
    assert tokenizer.decode(tokenizer.encode("<start>he<end>").ids) == "he"
    settings = json.loads((converted[0] / "tokenizer_config.json").read_text())
    assert (settings["bos_token"], settings["eos_token"]) == ("<start>", "<end>")


@pytest.mark.parametrize("name", ["blk.0.attn_q.bias", "blk.0.ffn_gate_inp.weight", "rope_freqs"])
def test_a_tensor_that_would_be_lost_is_refused(name):
    with pytest.raises(InvalidDeployment, match="unknown tensor"):
        weight_name(name)
