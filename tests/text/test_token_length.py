"""The bound that refuses a prompt before it is tokenized never refuses one that would fit."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tiny_model import byte_tokenizer
from tokenizers import AddedToken, Regex, models, normalizers
from tokenizers.pre_tokenizers import ByteLevel, Sequence, Split, WhitespaceSplit

from canopy.text.token_length import longest_token_bytes

TEXTS = st.text() | st.text(" \n\ta=").map(lambda text: 50 * text)


def with_pre_tokenizer(pre_tokenizer):
    tokenizer = byte_tokenizer()
    tokenizer.pre_tokenizer = pre_tokenizer
    return tokenizer


def without_bytes(characters):
    tokenizer = byte_tokenizer()
    kept = [c for c in sorted(ByteLevel.alphabet()) if c not in characters]
    tokenizer.model = models.BPE(vocab={c: i for i, c in enumerate(kept)}, merges=[])
    return tokenizer


@given(TEXTS | st.text("\u00e9\u0416\u4e2d\U0001f600\U000e0041"))
def test_no_text_has_more_bytes_than_its_tokens_may_stand_for(text):
    for tokenizer in (byte_tokenizer(), without_bytes("ÃÐäðñóô")):
        num_tokens = len(tokenizer.encode(text, add_special_tokens=False).ids)
        assert len(text.encode()) <= num_tokens * longest_token_bytes(tokenizer)


def test_a_step_before_the_bytes_that_keeps_all_keeps_the_bound():
    kept = Sequence([Split(Regex(r"\d"), "isolated"), ByteLevel(use_regex=False)])
    assert longest_token_bytes(with_pre_tokenizer(kept)) is not None


@pytest.mark.parametrize(
    "pre_tokenizer",
    [
        None,
        WhitespaceSplit(),
        Sequence([WhitespaceSplit(), ByteLevel()]),
        Sequence([Split(" ", "removed"), ByteLevel()]),
    ],
)
def test_where_bytes_may_be_dropped_there_is_no_bound(pre_tokenizer):
    assert longest_token_bytes(with_pre_tokenizer(pre_tokenizer)) is None


def test_where_text_may_be_changed_or_swallowed_there_is_no_bound():
    normalizing, swallowing = byte_tokenizer(), byte_tokenizer()
    normalizing.normalizer = normalizers.NFKC()
    swallowing.add_special_tokens([AddedToken("<mask>", lstrip=True)])
    assert longest_token_bytes(normalizing) is None
    assert longest_token_bytes(swallowing) is None
    assert longest_token_bytes(without_bytes("a")) is None
