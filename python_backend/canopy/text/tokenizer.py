"""Text to token ids and back, from the tokenizer files of a Hugging Face folder.

tokenizer.json           the tokens; its truncation and padding are for training, and left out
tokenizer_config.json    names of special tokens, whether they surround a prompt, a template
special_tokens_map.json  the names again, in folders of older versions
chat_template.jinja      the template, where it has a file of its own
"""

import json
import logging
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer as HuggingFaceTokenizer

from canopy.errors import InvalidDeployment, InvalidRequest
from canopy.text.chat_form import MARKS, ChatForm, form_of
from canopy.text.chat_template import (
    FOR_TOOLS,
    PLAIN_CHAT,
    ChatOptions,
    ChatTemplate,
    find_template,
)
from canopy.text.special_tokens import CUT, SpecialTokenCutter
from canopy.text.token_length import longest_token_bytes

logger = logging.getLogger(__name__)

_SPECIAL_TOKENS = ("bos", "eos", "unk", "sep", "pad", "cls", "mask")


class Tokenizer:
    """Encodes prompts and chats; decodes ids without special tokens."""

    def __init__(self, folder: Path) -> None:
        """Raises InvalidDeployment that names the file which is missing or damaged."""
        folder = Path(folder)
        settings = _read_object(folder / "tokenizer_config.json")
        self._tokenizer = _read_tokenizer(folder / "tokenizer.json")
        self._special_tokens = _special_tokens(folder, settings)
        added = self._tokenizer.get_added_tokens_decoder()
        special = {token_id: token.content for token_id, token in added.items() if token.special}
        self._cutter = SpecialTokenCutter(list(special.values()))
        marks = {token_id for token_id, text in special.items() if text in MARKS}
        self._hidden_ids = special.keys() - marks if marks else frozenset()  # empty: all special
        self._template = self._compiled(find_template(folder, settings))
        self._tool_template = self._compiled(find_template(folder, settings, FOR_TOOLS))
        self.longest_token_bytes = longest_token_bytes(self._tokenizer)  # None: not known

    def _compiled(self, found: tuple[str, Path] | None) -> ChatTemplate | None:
        return found and ChatTemplate(found[0], self._special_tokens, found[1])

    @property
    def chat_form(self) -> ChatForm:
        """How answers of this model hold more than text. Its template tells."""
        return form_of(self._tool_template)

    def eos_token_ids(self, others: Iterable[int], vocab_size: int) -> tuple[int, ...]:
        """The ends of a sequence: `others`, which the model's files name, and the tokenizer's own.

        Ascending, and within the vocabulary; the log tells of those outside.
        """
        token = self._special_tokens.get("eos_token")
        own = None if token is None else self._tokenizer.token_to_id(token)
        named = {*others, *([] if own is None else [own])}
        known = {token_id for token_id in named if 0 <= token_id < vocab_size}
        if named != known:
            logger.warning(
                "end-of-sequence ids %s lie outside the vocabulary of %d tokens and are left out",
                sorted(named - known),
                vocab_size,
            )
        return tuple(sorted(known))

    @property
    def vocab_size(self) -> int:
        """Tokens, added ones included."""
        return self._tokenizer.get_vocab_size(with_added_tokens=True)

    def encode(self, text: str) -> list[int]:
        """Ids of a bare prompt, with the special tokens that the model expects around it."""
        return self._ids([text], add_special_tokens=True)

    def encode_rendered(self, text: str) -> list[int]:
        """Ids of a text that already carries its special tokens, such as a rendered chat.

        What lies between two cuts of `special_tokens` is encoded by itself.
        """
        return self._ids(text.split(CUT), add_special_tokens=False)

    def _ids(self, texts: list[str], add_special_tokens: bool) -> list[int]:
        """In a batch even for one text: that lets other threads of Python run meanwhile."""
        encoded = self._tokenizer.encode_batch_fast(texts, add_special_tokens=add_special_tokens)
        return [token_id for piece in encoded for token_id in piece.ids]

    def decode(self, token_ids: list[int]) -> str:
        """Text of ids; undecodable bytes as U+FFFD.

        Special tokens are left out, but for those that mark tool calls or reasoning.
        """
        if not self._hidden_ids:
            return self._tokenizer.decode(token_ids, skip_special_tokens=True)
        shown = [token_id for token_id in token_ids if token_id not in self._hidden_ids]
        return self._tokenizer.decode(shown, skip_special_tokens=False)

    def token(self, token_id: int) -> str:
        """A token as the vocabulary spells it; "" where there is none."""
        return self._tokenizer.id_to_token(token_id) or ""

    def render_chat(
        self,
        messages: list[dict[str, Any]],
        allow_special_tokens: bool = True,
        options: ChatOptions = PLAIN_CHAT,
    ) -> str:
        """The model's chat template over `messages`, ending where the answer begins.

        Special tokens that the messages themselves hold stay what they are, or are cut where they
        are not allowed. Raises InvalidRequest when the model has no template or the template
        refuses.
        """
        template = self._tool_template if options.tools else self._template
        if template is None:
            raise InvalidRequest("this model has no chat template: send text_input instead")
        if not allow_special_tokens:
            messages = self._cutter.cut(messages)
            options = replace(
                options,
                tools=self._cutter.cut(options.tools),
                template_kwargs=self._cutter.cut(options.template_kwargs),
            )
        return template.render(messages, options)


def _read_tokenizer(path: Path) -> HuggingFaceTokenizer:
    if not path.is_file():
        raise InvalidDeployment(f"{path.parent} has no {path.name}")
    try:
        tokenizer = HuggingFaceTokenizer.from_file(str(path))
    except Exception as error:  # the library raises nothing narrower
        raise InvalidDeployment(f"cannot read {path}: {error}") from error
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return tokenizer


def _special_tokens(folder: Path, settings: dict[str, Any]) -> dict[str, str]:
    """Those that the folder names, by what they are for; the others are missing, not empty."""
    # `transformers` 4.34 began to write `added_tokens_decoder`, and no longer reads the map then.
    is_old = "added_tokens_decoder" not in settings
    named = settings | (_read_object(folder / "special_tokens_map.json") if is_old else {})
    tokens = {}
    for name in [f"{purpose}_token" for purpose in _SPECIAL_TOKENS]:
        token = named.get(name)
        token = token.get("content") if isinstance(token, dict) else token
        if token is not None and not isinstance(token, str):
            raise InvalidDeployment(f"{folder / 'tokenizer_config.json'}: {name} must be a text")
        if token:
            tokens[name] = token
    return tokens


def _read_object(path: Path) -> dict[str, Any]:
    """Of a file that need not be there."""
    if not path.exists():
        return {}
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise InvalidDeployment(f"cannot read {path}: {error}") from error
    if not isinstance(content, dict):
        raise InvalidDeployment(f"{path} does not hold a JSON object")
    return content
