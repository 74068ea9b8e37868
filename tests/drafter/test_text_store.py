"""The store that ships as text is counted in the tokens of whatever target is loaded."""

import json
import lzma

import numpy as np
import pytest
from tiny_model import TEMPLATE
from tokenizers import Tokenizer as HuggingFaceTokenizer
from tokenizers import decoders, models, pre_tokenizers, trainers

from canopy.drafter.lookup import text_store
from canopy.drafter.lookup.text_store import open_text_store, read_texts
from canopy.errors import InvalidDeployment
from canopy.text.tokenizer import Tokenizer
from canopy_kernels.ngram.ngram_table import context_keys, find_context

ANSWERS = ["the river runs past the mill", "the river runs down to the sea"]


@pytest.fixture(autouse=True)
def own_texts(tmp_path, monkeypatch):
    """The texts are ANSWERS, every vocabulary is large enough, and files are kept apart."""
    path = tmp_path / "texts.jsonl.xz"
    with lzma.open(path, "wt", encoding="utf-8") as file:
        for answer in ANSWERS:
            file.write(json.dumps({"prompt": "Go on.", "answer": answer}) + "\n")
    monkeypatch.setattr(text_store, "SHIPPED_TEXTS", path)
    monkeypatch.setattr(text_store, "LEAST_VOCABULARY", 2)
    monkeypatch.setenv("CANOPY_HOME", str(tmp_path / "home"))
    return path


def folder_of(tmp_path, kind):
    """A folder with a tokenizer alone."""
    tokenizer = HuggingFaceTokenizer(models.BPE())
    if kind == "byte_level":
        tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        tokenizer.decoder = decoders.ByteLevel()
    else:
        tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
        tokenizer.decoder = decoders.Metaspace()
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    trainer = trainers.BpeTrainer(vocab_size=400, initial_alphabet=alphabet, show_progress=False)
    tokenizer.train_from_iterator(ANSWERS, trainer)
    folder = tmp_path / kind
    folder.mkdir()
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps({"chat_template": TEMPLATE}))
    return folder


def followers(store, context):
    place = find_context(
        store.ngrams, context_keys(np.array([*context, 0], np.int32), len(context))[0]
    )
    if place < 0:
        return []
    first, end = store.ngrams.starts[place : place + 2]
    return sorted(store.ngrams.follower_ids[first:end].tolist())


@pytest.mark.parametrize("kind", ["byte_level", "sentencepiece"])
def test_what_followed_words_is_known_in_any_vocabulary(tmp_path, kind):
    folder = folder_of(tmp_path, kind)
    ids = [Tokenizer(folder).encode_rendered(answer) for answer in ANSWERS]
    store = open_text_store(folder, "v", np.zeros(0))
    shared = next(i for i, (a, b) in enumerate(zip(*ids, strict=False)) if a != b)
    assert shared >= 2
    assert followers(store, ids[0][:1]) >= [ids[0][1]]
    assert followers(store, ids[0][shared - 2 : shared]) == sorted({ids[0][shared], ids[1][shared]})


def test_an_answer_is_known_from_the_end_of_its_prompt_on(tmp_path):
    folder = folder_of(tmp_path, "byte_level")
    tokenizer = Tokenizer(folder)
    prompt = tokenizer.encode_rendered(
        tokenizer.render_chat([{"role": "user", "content": "Anything."}])
    )
    first = tokenizer.encode_rendered(ANSWERS[0])[0]
    assert followers(open_text_store(folder, "v", np.zeros(0)), prompt[-4:]) == [first]


def test_it_is_counted_once_and_again_where_it_is_damaged_or_the_texts_are_others(
    tmp_path, own_texts, monkeypatch
):
    folder, counted = folder_of(tmp_path, "byte_level"), []
    real = text_store.count
    monkeypatch.setattr(text_store, "count", lambda texts: counted.append(1) or real(texts))
    stores = [open_text_store(folder, "v", np.zeros(0)) for _ in range(2)]
    assert len(counted) == 1
    for mine, its in zip(*(store.ngrams for store in stores), strict=True):
        np.testing.assert_array_equal(mine, its)
    [kept] = (tmp_path / "home" / "ngrams").glob("*.safetensors")
    kept.write_bytes(b"no store at all, but long enough for a header")
    open_text_store(folder, "v", np.zeros(0))
    assert len(counted) == 2
    with lzma.open(own_texts, "wt", encoding="utf-8") as file:
        file.write(json.dumps({"prompt": "Go on.", "answer": "the mill"}) + "\n")
    open_text_store(folder, "v", np.zeros(0))
    assert len(counted) == 3


def test_a_cache_that_cannot_be_written_costs_the_next_start_only(tmp_path, monkeypatch, caplog):
    folder = folder_of(tmp_path, "byte_level")
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("CANOPY_HOME", str(tmp_path / "file"))
    assert len(open_text_store(folder, "v", np.zeros(0)).ngrams.keys)
    assert "not kept" in caplog.text


def test_letters_tell_nothing(tmp_path, monkeypatch):
    monkeypatch.setattr(text_store, "LEAST_VOCABULARY", 100_000)
    assert not len(open_text_store(folder_of(tmp_path, "byte_level"), "v", np.zeros(0)).ngrams.keys)


def test_damaged_texts_are_refused(own_texts):
    own_texts.write_bytes(own_texts.read_bytes()[:-20])
    with pytest.raises(InvalidDeployment, match="damaged"):
        list(read_texts(own_texts))
