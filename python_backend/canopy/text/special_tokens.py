"""Special tokens inside the texts of a chat, so that no message can forge a turn.

A template writes special tokens around the messages, and the tokenizer finds them in the rendered
text wherever they stand. In a message each is cut behind its first character: what lies between two
cuts is encoded by itself, and neither half is a special token.
"""

import re
from collections.abc import Collection
from typing import Any

CUT = "\ufdd0"  # a code point that no text is meant to hold


class SpecialTokenCutter:
    """For the special tokens of one tokenizer. A token of one character cannot be cut."""

    def __init__(self, special_tokens: Collection[str]) -> None:
        texts = [re.escape(token) for token in special_tokens if len(token) > 1]
        # Starts are looked for and not whole tokens, since tokens may overlap.
        self._starts = re.compile(f"(?={'|'.join(texts)})(.)", re.DOTALL) if texts else None

    def cut(self, value: Any) -> Any:
        """The texts within a message, or within any JSON value, with cuts; keys stay."""
        if isinstance(value, str):
            text = value.replace(CUT, "")
            return text if self._starts is None else self._starts.sub(rf"\1{CUT}", text)
        if isinstance(value, list):
            return [self.cut(item) for item in value]
        if isinstance(value, dict):
            return {key: self.cut(item) for key, item in value.items()}
        return value
