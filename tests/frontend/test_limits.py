"""What a model folder gives to requests: end-of-sequence ids and the makers' sampling."""

import json
import logging

import pytest

from canopy.errors import InvalidDeployment
from canopy.frontend.limits import model_limits, sampling_defaults
from canopy.frontend.sampling_options import ClientParameters
from canopy.text.tokenizer import Tokenizer

EOS = 256  # of the tiny model's tokenizer, whose vocabulary has 257 tokens


def limits_of(tiny_folder, folder, config=(), generation=None, settings=()):
    for name, changes in (("config", config), ("tokenizer_config", settings)):
        content = json.loads((tiny_folder / f"{name}.json").read_text()) | dict(changes)
        (folder / f"{name}.json").write_text(json.dumps(content))
    (folder / "tokenizer.json").write_bytes((tiny_folder / "tokenizer.json").read_bytes())
    if generation is not None:
        (folder / "generation_config.json").write_text(json.dumps(generation))
    return model_limits(folder, Tokenizer(folder))


def test_ends_of_sequence_are_those_of_all_three_files(tiny_folder, tmp_path):
    limits = limits_of(tiny_folder, tmp_path, {"eos_token_id": 2}, {"eos_token_id": [3, 5]})
    assert limits.eos_token_ids == (2, 3, 5, EOS)


def test_a_folder_whose_tokenizer_alone_names_the_end_has_one(tiny_folder, tmp_path):
    assert limits_of(tiny_folder, tmp_path, {"eos_token_id": None}).eos_token_ids == (EOS,)


def test_an_end_outside_the_vocabulary_is_left_out_and_told(tiny_folder, tmp_path, caplog):
    limits = limits_of(tiny_folder, tmp_path, {"eos_token_id": [7, 257]})
    assert limits.eos_token_ids == (7, EOS)
    assert "[257]" in caplog.text


def test_no_end_at_all_is_told(tiny_folder, tmp_path, caplog):
    caplog.set_level(logging.WARNING)
    nothing = {"eos_token": None}
    assert (
        limits_of(tiny_folder, tmp_path, {"eos_token_id": None}, None, nothing).eos_token_ids == ()
    )
    assert "no file of the model names an end-of-sequence token" in caplog.text


@pytest.mark.parametrize(
    ("generation", "expected"),
    [
        (None, ClientParameters()),
        ({"eos_token_id": 2, "temperature": None}, ClientParameters()),
        (
            {"do_sample": True, "temperature": 0.6, "top_p": 0.9, "top_k": 20, "min_p": 0.05},
            ClientParameters(temperature=0.6, top_p=0.9, top_k=20, min_p=0.05),
        ),
        (
            {"repetition_penalty": 1.05, "typical_p": 0.95},
            ClientParameters(repetition_penalty=1.05, typical_p=0.95),
        ),
        ({"do_sample": False, "top_p": 0.9}, ClientParameters(temperature=0.0, top_p=0.9)),
    ],
)
def test_the_law_left_open_is_the_one_that_the_makers_recommend(tmp_path, generation, expected):
    if generation is not None:
        (tmp_path / "generation_config.json").write_text(json.dumps(generation))
    assert sampling_defaults(tmp_path) == expected


@pytest.mark.parametrize("content", ["{", "[]", '{"temperature": -1}', '{"top_p": "much"}'])
def test_a_recommendation_that_cannot_be_used_is_named(tmp_path, content):
    (tmp_path / "generation_config.json").write_text(content)
    with pytest.raises(InvalidDeployment, match="generation_config"):
        sampling_defaults(tmp_path)


def test_what_is_recommended_and_not_applied_is_told(tmp_path, caplog):
    (tmp_path / "generation_config.json").write_text('{"no_repeat_ngram_size": 3}')
    sampling_defaults(tmp_path)
    assert "no_repeat_ngram_size" in caplog.text
