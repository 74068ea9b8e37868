"""Tokens as clients are told of them."""

from collections.abc import Iterable
from functools import lru_cache
from typing import Any

from canopy.engine.output import TokenLogprob
from canopy.grammar.compiler import GrammarCompiler
from canopy.text.tokenizer import Tokenizer

_MAX_KNOWN = 1 << 16


class TokenTexts:
    """Spells tokens, and log-probs as the Triton vLLM backend does."""

    def __init__(self, tokenizer: Tokenizer, grammars: GrammarCompiler | None) -> None:
        """grammars: which know the tokens as bytes; without them a token is told as its text."""
        self._tokenizer = tokenizer
        self._grammars = grammars
        self.spelled = lru_cache(_MAX_KNOWN)(self._spelled)

    def _spelled(self, token_id: int) -> tuple[str, bytes]:
        """Its text and its bytes; a special token is spelled out."""
        text = self._tokenizer.decode([token_id]) or self._tokenizer.token(token_id)
        if self._grammars is None or not self._tokenizer.decode([token_id]):
            return text, text.encode()
        return text, self._grammars.token_bytes(token_id)

    def logprobs(self, found: Iterable[TokenLogprob]) -> list[dict[str, Any]]:
        """One object a token: by token id, the token itself first and then the likeliest."""
        return [self._entry(token) for token in found]

    def _entry(self, token: TokenLogprob) -> dict[str, Any]:
        ranked: list[tuple[int, float | None, int]] = [(token.token_id, token.logprob, token.rank)]
        ranked += [(i, logprob, rank) for rank, (i, logprob) in enumerate(token.top, 1)]
        entry: dict[str, Any] = {}
        for token_id, logprob, rank in ranked:
            text, data = self.spelled(token_id)
            told = {"logprob": logprob, "rank": rank, "decoded_token": text, "bytes": list(data)}
            entry.setdefault(str(token_id), told)
        return entry
