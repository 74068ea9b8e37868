"""The chat template of a model folder, with the meaning that `transformers` gives it."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

import jinja2
import jinja2.ext
import jinja2.nodes
import jinja2.parser

from canopy.errors import InvalidDeployment, InvalidRequest
from canopy.text.bounded_jinja import BoundedEnvironment, render_bounded

TEMPLATE_FILE = "chat_template.jinja"
DEFAULT, FOR_TOOLS = "default", "tool_use"  # among templates with names


@dataclass(frozen=True)
class ChatOptions:
    """What a template may be told beside the messages."""

    tools: list[dict[str, Any]] | None = None
    add_generation_prompt: bool = True
    continue_final_message: bool = False  # the text ends where the last message does
    template_kwargs: Mapping[str, Any] = field(default_factory=dict)  # as `transformers` takes them


PLAIN_CHAT = ChatOptions()


class ChatTemplate:
    """One compiled template and the special tokens that it may name."""

    def __init__(self, source: str, special_tokens: dict[str, str], origin: Path) -> None:
        """origin: the file that it stands in. Raises InvalidDeployment for wrong syntax."""
        self.source = source
        self._special_tokens = special_tokens
        try:
            self._template = _environment().from_string(source)
        except jinja2.TemplateSyntaxError as error:
            raise InvalidDeployment(
                f"the chat template in {origin} is malformed: line {error.lineno}: {error.message}"
            ) from error
        except (RecursionError, ValueError) as error:
            raise InvalidDeployment(
                f"the chat template in {origin} is malformed: {error}"
            ) from error

    def render(self, messages: list[dict[str, Any]], options: ChatOptions = PLAIN_CHAT) -> str:
        """The chat as one text, ending where the answer begins.

        Raises InvalidRequest with the template's own words where it refuses or fails.
        """
        values = {"documents": None, **options.template_kwargs}
        values |= {"messages": messages, "tools": options.tools}
        values["add_generation_prompt"] = options.add_generation_prompt
        try:
            text = render_bounded(self._template, self._special_tokens | values)
            return _cut(text, messages[-1]["content"]) if options.continue_final_message else text
        except jinja2.TemplateError as error:
            raise InvalidRequest(f"the chat template refuses these messages: {error}") from error
        except Exception as error:  # a template can raise whatever Python can
            raise InvalidRequest(
                f"the chat template fails with these messages: {type(error).__name__}: {error}"
            ) from error


def _cut(text: str, last_content: str) -> str:
    """A rendered chat up to the end of its last message, as `transformers` cuts it."""
    start = text.rfind(last_content.strip())
    if not last_content.strip() or start < 0:
        raise jinja2.TemplateError("the last message cannot be found in the rendered chat")
    spaced = last_content.lstrip()
    kept = spaced if text.startswith(spaced, start) else last_content.strip()
    return text[: start + len(kept)]


def find_template(
    folder: Path, settings: dict[str, Any], name: str = DEFAULT
) -> tuple[str, Path] | None:
    """The source of a folder's template for a purpose, and its file; None: no template.

    settings: the folder's tokenizer_config.json. Where it names no template for the purpose, the
    default one is meant. Raises InvalidDeployment where there are only others.
    """
    path = folder / TEMPLATE_FILE
    if path.is_file():
        return _read(path), path
    path = folder / "tokenizer_config.json"
    given = settings.get("chat_template")
    if given is None or isinstance(given, str):
        return None if given is None else (given, path)
    named = _named_templates(given, path)
    if DEFAULT not in named:
        raise InvalidDeployment(
            f"chat_template in {path} has none named {DEFAULT!r}, only {', '.join(named)}"
        )
    return named.get(name, named[DEFAULT]), path


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        raise InvalidDeployment(f"cannot read {path}: {error}") from error


def _named_templates(given: Any, path: Path) -> dict[str, str]:
    try:
        named = (
            given if isinstance(given, dict) else {one["name"]: one["template"] for one in given}
        )
    except (TypeError, KeyError) as error:
        raise InvalidDeployment(
            f"chat_template in {path} must be a text or a list of {{name, template}}"
        ) from error
    if not all(isinstance(text, str) for text in (*named.keys(), *named.values())):
        raise InvalidDeployment(f"chat_template in {path}: names and templates must be texts")
    return named


class _Generation(jinja2.ext.Extension):
    """`{% generation %}` marks what the assistant wrote, for training; here it marks nothing."""

    tags = {"generation"}  # noqa: RUF012

    def parse(self, parser: jinja2.parser.Parser) -> list[jinja2.nodes.Node]:
        next(parser.stream)
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return [jinja2.nodes.Scope(body)]


def _environment() -> BoundedEnvironment:
    environment = BoundedEnvironment(
        filters={"tojson": _to_json},
        trim_blocks=True,
        lstrip_blocks=True,
        extensions=[_Generation, jinja2.ext.loopcontrols],
    )
    environment.globals["raise_exception"] = _raise_template_error
    environment.globals["strftime_now"] = lambda form: datetime.now().strftime(form)
    return environment


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """Without jinja's escapes for HTML, which a model has never seen."""
    return json.dumps(
        value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )


def _raise_template_error(message: str) -> None:
    raise jinja2.TemplateError(message)
