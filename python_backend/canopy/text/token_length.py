"""How many bytes of text one token can stand for, so that a prompt too long is not tokenized."""

from typing import Any

from tokenizers import Tokenizer
from tokenizers.models import BPE
from tokenizers.pre_tokenizers import ByteLevel, Digits, Sequence, Split

_ALPHABET = set(ByteLevel.alphabet())  # a character for each byte; from 0xC0 on it is the same
_FIRST_OF_SEVERAL = {chr(byte) for byte in range(0xC0, 0x100)}


def longest_token_bytes(tokenizer: Tokenizer) -> int | None:
    """Most bytes of text that a token takes; None where there is no telling.

    A byte-level BPE keeps every byte of a text, and a token has at least one character for each of
    its bytes. Where the first byte of some characters has no token, it is dropped, and at least
    half of such a character stays. Others may drop or join more: a normalizer, a pre-tokenizer
    that removes what it splits at, an unknown token, an added token that takes white space.
    """
    added = tokenizer.get_added_tokens_decoder().values()
    vocabulary = tokenizer.get_vocab(with_added_tokens=True)
    if (
        tokenizer.normalizer is not None
        or not _keeps_all_bytes(tokenizer.pre_tokenizer)
        or not isinstance(tokenizer.model, BPE)
        or tokenizer.model.unk_token is not None
        or not vocabulary.keys() >= _ALPHABET - _FIRST_OF_SEVERAL
        or any(token.lstrip or token.rstrip for token in added)
    ):
        return None
    longest = max(len(token.encode("utf-8")) for token in vocabulary)
    return longest if vocabulary.keys() >= _ALPHABET else 2 * longest


def _keeps_all_bytes(pre_tokenizer: Any) -> bool:
    """Whether it is byte-level at last and removes nothing before."""
    is_sequence = isinstance(pre_tokenizer, Sequence)
    *before, last = iter(pre_tokenizer) if is_sequence else [pre_tokenizer]
    return isinstance(last, ByteLevel) and all(
        isinstance(step, Digits | ByteLevel)
        or (isinstance(step, Split) and step.behavior.lower() != "removed")
        for step in before
    )
