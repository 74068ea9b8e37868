"""Text to token ids and back, from the tokenizer.json of a Hugging Face folder."""

import json
from datetime import datetime
from functools import cached_property
from pathlib import Path
from typing import Any

import jinja2
from jinja2.sandbox import ImmutableSandboxedEnvironment
from tokenizers import Tokenizer as HuggingFaceTokenizer

from canopy.errors import InvalidDeployment, InvalidRequest


class Tokenizer:
    """Encodes prompts and chats; decodes ids without special tokens."""

    def __init__(self, folder: Path) -> None:
        path = Path(folder) / "tokenizer.json"
        if not path.is_file():
            raise InvalidDeployment(f"{folder} has no tokenizer.json")
        self._folder = Path(folder)
        self._tokenizer = HuggingFaceTokenizer.from_file(str(path))
        self._tokenizer.no_truncation()

    def encode(self, text: str) -> list[int]:
        """Ids of a bare prompt, with the special tokens that the model expects around it."""
        return self._tokenizer.encode(text, add_special_tokens=True).ids

    def encode_rendered(self, text: str) -> list[int]:
        """Ids of a text that already carries its special tokens, such as a rendered chat."""
        return self._tokenizer.encode(text, add_special_tokens=False).ids

    def decode(self, token_ids: list[int]) -> str:
        """Text of ids; special tokens left out, undecodable bytes as U+FFFD."""
        return self._tokenizer.decode(token_ids, skip_special_tokens=True)

    def render_chat(self, messages: list[dict[str, Any]]) -> str:
        """The model's chat template over `messages`, ending where the answer begins.

        Raises InvalidRequest when the model has no template or the template refuses.
        """
        if self._template is None:
            raise InvalidRequest("this model has no chat template: send text_input instead")
        try:
            return self._template.render(
                messages=messages, add_generation_prompt=True, **self._special_tokens
            )
        except jinja2.TemplateError as error:
            raise InvalidRequest(f"the chat template refuses these messages: {error}") from error

    @cached_property
    def _settings(self) -> dict[str, Any]:
        path = self._folder / "tokenizer_config.json"
        return json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}

    @cached_property
    def _special_tokens(self) -> dict[str, str]:
        tokens = {}
        for name in ("bos_token", "eos_token", "unk_token", "pad_token"):
            token = self._settings.get(name)
            tokens[name] = (token["content"] if isinstance(token, dict) else token) or ""
        return tokens

    @cached_property
    def _template(self) -> jinja2.Template | None:
        path = self._folder / "chat_template.jinja"
        source = path.read_text("utf-8") if path.is_file() else self._settings.get("chat_template")
        if not isinstance(source, str):
            return None
        environment = ImmutableSandboxedEnvironment(
            trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"]
        )
        environment.globals["raise_exception"] = _raise_template_error
        environment.globals["strftime_now"] = lambda form: datetime.now().strftime(form)
        return environment.from_string(source)


def _raise_template_error(message: str) -> None:
    raise jinja2.TemplateError(message)
