import json
import shutil

import pytest
from tiny_model import byte_tokenizer
from tokenizers import AddedToken
from tokenizers.processors import TemplateProcessing
from transformers import PreTrainedTokenizerFast

from canopy.errors import InvalidDeployment, InvalidRequest
from canopy.text.detokenizer import Detokenizer
from canopy.text.special_tokens import SpecialTokenCutter
from canopy.text.tokenizer import Tokenizer

MESSAGES = [{"role": "user", "content": "hi"}]


def test_decoding_an_encoding_gives_the_text_back(tiny_folder):
    tokenizer = Tokenizer(tiny_folder)
    for text in ("hello", "漢字 🌳", "def f():\n\treturn 1", " leading", ""):
        assert tokenizer.decode(tokenizer.encode(text)) == text


def test_special_tokens_are_left_out_of_decoded_text(tiny_folder):
    tokenizer = Tokenizer(tiny_folder)
    assert tokenizer.decode(tokenizer.encode_rendered("a<|end|>b")) == "ab"


def test_special_tokens_that_mark_calls_or_reasoning_are_kept(tmp_path):
    tokenizer = byte_tokenizer()
    tokenizer.add_special_tokens(["[TOOL_CALLS]", "</think>", "<pad>"])
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    ours, text = Tokenizer(tmp_path), "a<pad>é</think> b[TOOL_CALLS][{<|end|>"
    token_ids = ours.encode_rendered(text)
    assert len(token_ids) == len("aé b[{".encode()) + 4
    kept = "aé</think> b[TOOL_CALLS][{"
    assert ours.decode(token_ids) == kept
    detokenizer = Detokenizer(ours.decode, [])
    assert "".join(map(detokenizer.push, token_ids)) + detokenizer.flush() == kept
    forged = ours.encode_rendered(SpecialTokenCutter(["[TOOL_CALLS]"]).cut("[TOOL_CALLS]"))
    assert len(forged) == len("[TOOL_CALLS]")


def test_a_chat_is_rendered_up_to_where_the_answer_begins(tiny_folder):
    assert Tokenizer(tiny_folder).render_chat(MESSAGES) == "[user] hi\n[assistant] "


def test_a_model_without_a_template_takes_no_messages(tiny_folder, tmp_path):
    (tmp_path / "tokenizer.json").write_bytes((tiny_folder / "tokenizer.json").read_bytes())
    with pytest.raises(InvalidRequest, match="no chat template"):
        Tokenizer(tmp_path).render_chat(MESSAGES)


def test_a_folder_without_a_tokenizer_is_named(tmp_path):
    with pytest.raises(InvalidDeployment, match="has no tokenizer"):
        Tokenizer(tmp_path)


@pytest.mark.parametrize("name", ["tokenizer.json", "tokenizer_config.json"])
@pytest.mark.parametrize("content", ["{", "[]", b"\xff"])
def test_a_damaged_file_is_found_at_load_and_named(tiny_folder, tmp_path, name, content):
    shutil.copytree(tiny_folder, tmp_path, dirs_exist_ok=True)
    (tmp_path / name).write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(InvalidDeployment, match=name):
        Tokenizer(tmp_path)


def write_tokenizer(folder, settings, special_tokens_map=None, surrounded=True) -> Tokenizer:
    """A tokenizer with <s>, </s> and <pad>, which pads, truncates and may surround prompts."""
    tokenizer = byte_tokenizer()
    tokenizer.add_special_tokens([AddedToken(t, special=True) for t in ("<s>", "</s>", "<pad>")])
    tokenizer.enable_padding(length=40, pad_id=tokenizer.token_to_id("<pad>"), pad_token="<pad>")
    tokenizer.enable_truncation(8)
    if surrounded:
        ids = [(token, tokenizer.token_to_id(token)) for token in ("<s>", "</s>")]
        tokenizer.post_processor = TemplateProcessing(single="<s> $A </s>", special_tokens=ids)
    tokenizer.save(str(folder / "tokenizer.json"))
    settings = {"tokenizer_class": "PreTrainedTokenizerFast"} | settings
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    if special_tokens_map is not None:
        (folder / "special_tokens_map.json").write_text(json.dumps(special_tokens_map))
    return Tokenizer(folder)


def ids_of(token_id: int | None) -> tuple[int, ...]:
    return () if token_id is None else (token_id,)


NAMED = {"bos_token": "<s>", "eos_token": "</s>"}


@pytest.mark.parametrize("surrounded", [True, False])
@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"add_bos_token": True},
        {"add_bos_token": False},
        {"add_eos_token": True, "bos_token": None},
    ],
)
def test_special_tokens_surround_a_prompt_as_in_transformers(tmp_path, settings, surrounded):
    ours = write_tokenizer(tmp_path, NAMED | settings, surrounded=surrounded)
    theirs = PreTrainedTokenizerFast.from_pretrained(tmp_path)
    text = "hello <s> world, and more of it"
    assert ours.encode(text) == theirs(text)["input_ids"]
    assert ours.encode_rendered(text) == theirs(text, add_special_tokens=False)["input_ids"]
    assert ours.eos_token_ids((), len(theirs)) == ids_of(theirs.eos_token_id)


@pytest.mark.parametrize("added", [{}, {"added_tokens_decoder": {}}])
def test_names_of_special_tokens_come_from_the_files_that_transformers_reads(tmp_path, added):
    template = {"chat_template": "{{ bos_token }}{{ eos_token }}"}
    old = {"eos_token": {"content": "<pad>"}}
    ours = write_tokenizer(tmp_path, NAMED | template | added, old)
    theirs = PreTrainedTokenizerFast.from_pretrained(tmp_path)
    assert ours.render_chat(MESSAGES) == theirs.apply_chat_template(MESSAGES, tokenize=False)
    assert ours.eos_token_ids((), len(theirs)) == ids_of(theirs.eos_token_id)
