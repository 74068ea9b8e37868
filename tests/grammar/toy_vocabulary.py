"""A vocabulary of a few tokens over the letters a, b, c; token 0 ends a text."""

import llguidance

TOKENS = [b"</s>", b"a", b"b", b"c", b"ab", b"ba", b"bc", b"abc", b"aa", b"cc"]
EOS = 0


class _Wrapped:
    tokens = TOKENS
    eos_token_id = EOS
    bos_token_id = None
    unk_token_id = None
    special_token_ids = (EOS,)

    def __call__(self, text: str | bytes) -> list[int]:
        data = text.encode() if isinstance(text, str) else text
        return [TOKENS.index(bytes([byte])) for byte in data]


def toy_vocabulary() -> llguidance.LLTokenizer:
    return llguidance.LLTokenizer(llguidance.TokenizerWrapper(_Wrapped()), eos_token=EOS)


def spelled(token_ids: list[int]) -> bytes:
    return b"".join(TOKENS[token_id] for token_id in token_ids)
