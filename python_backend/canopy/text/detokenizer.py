"""Token ids to text as they come, never splitting a character.

Decoding is not local: a byte-level token may hold part of a character, and some tokenizers join
words depending on what stands before. So a window is decoded twice, with and without the new
token, and what was added is the new text:

    ids   ... | window_start ....... read | new token |
    text        decode(window up to read) | + what the new token adds

Text that ends in an incomplete character (U+FFFD) is held back until it is complete; `flush`
gives out what is left, so the pieces always add up to one text.

A tokenizer with byte fallback decodes a run of byte tokens as a whole, and one bad byte makes
U+FFFD of every byte in it. So the context begins where it decodes cleanly, and tokens that would
spoil the run before them are decoded on their own.
"""

from collections.abc import Callable

_INCOMPLETE = "�"
# A character has at most 4 bytes, so tokens beyond that wait for nothing; stray bytes before it
# may double the count.
_MAX_HELD_TOKENS = 8


class Detokenizer:
    """Incremental decoding of one sequence's emitted tokens.

    `context_ids` are the last tokens before them: some tokenizers drop the space before the first
    word of a text, and the first emitted word is seldom the first of its text.
    """

    def __init__(self, decode: Callable[[list[int]], str], context_ids: list[int]) -> None:
        self._decode = decode
        self._token_ids = _clean_end(decode, context_ids)
        self._window_start = 0
        self._read = len(self._token_ids)

    def push(self, token_id: int) -> str:
        """The text that `token_id` completes; empty while a character is incomplete."""
        self._token_ids.append(token_id)
        before, after = self._window_texts()
        held = len(self._token_ids) - self._read
        if after.endswith(_INCOMPLETE) and held < _MAX_HELD_TOKENS:
            return ""
        return self._advance(before, after)

    def flush(self) -> str:
        """What was held back, for the end of a sequence; a cut character is one U+FFFD."""
        text = self._advance(*self._window_texts())
        whole = text.rstrip(_INCOMPLETE)
        return text if whole == text else whole + _INCOMPLETE

    def _window_texts(self) -> tuple[str, str]:
        window = self._token_ids[self._window_start :]
        return self._decode(window[: self._read - self._window_start]), self._decode(window)

    def _advance(self, before: str, after: str) -> str:
        held = self._token_ids[self._read :]
        self._window_start = self._read
        self._read = len(self._token_ids)
        return after[len(before) :] if after.startswith(before) else self._decode(held)


def _clean_end(decode: Callable[[list[int]], str], token_ids: list[int]) -> list[int]:
    """The longest end of `token_ids` that does not begin within a character, or all of them."""
    for start in range(len(token_ids)):
        if _INCOMPLETE not in decode(token_ids[start:]):
            return token_ids[start:]
    return list(token_ids)
