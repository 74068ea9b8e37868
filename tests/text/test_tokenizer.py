import json

import pytest

from canopy.errors import InvalidDeployment, InvalidRequest
from canopy.text.tokenizer import Tokenizer

MESSAGES = [{"role": "user", "content": "hi"}]


def test_decoding_an_encoding_gives_the_text_back(tiny_folder):
    tokenizer = Tokenizer(tiny_folder)
    for text in ("hello", "漢字 🌳", "def f():\n\treturn 1", " leading", ""):
        assert tokenizer.decode(tokenizer.encode(text)) == text


def test_special_tokens_are_left_out_of_decoded_text(tiny_folder):
    tokenizer = Tokenizer(tiny_folder)
    assert tokenizer.decode(tokenizer.encode_rendered("a<|end|>b")) == "ab"


def test_a_chat_is_rendered_up_to_where_the_answer_begins(tiny_folder):
    assert Tokenizer(tiny_folder).render_chat(MESSAGES) == "[user] hi\n[assistant] "


def _with_template(tiny_folder, tmp_path, template: str | None) -> Tokenizer:
    (tmp_path / "tokenizer.json").write_bytes((tiny_folder / "tokenizer.json").read_bytes())
    settings = {"eos_token": {"content": "<|end|>"}, "chat_template": template}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(settings))
    return Tokenizer(tmp_path)


def test_a_template_file_goes_before_the_template_in_the_settings(tiny_folder, tmp_path):
    tokenizer = _with_template(tiny_folder, tmp_path, "settings")
    (tmp_path / "chat_template.jinja").write_text("file {{ eos_token }}")
    assert tokenizer.render_chat(MESSAGES) == "file <|end|>"


def test_a_template_that_refuses_refuses_the_request(tiny_folder, tmp_path):
    tokenizer = _with_template(tiny_folder, tmp_path, "{{ raise_exception('roles alternate') }}")
    with pytest.raises(InvalidRequest, match="roles alternate"):
        tokenizer.render_chat(MESSAGES)


def test_a_template_cannot_reach_the_interpreter(tiny_folder, tmp_path):
    tokenizer = _with_template(tiny_folder, tmp_path, "{{ ''.__class__.__mro__ }}")
    with pytest.raises(InvalidRequest):
        tokenizer.render_chat(MESSAGES)


def test_a_model_without_a_template_takes_no_messages(tiny_folder, tmp_path):
    with pytest.raises(InvalidRequest, match="no chat template"):
        _with_template(tiny_folder, tmp_path, None).render_chat(MESSAGES)


def test_a_folder_without_a_tokenizer_is_named(tmp_path):
    with pytest.raises(InvalidDeployment, match="has no tokenizer"):
        Tokenizer(tmp_path)
