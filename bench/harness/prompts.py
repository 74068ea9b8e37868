"""Prompt files: JSON lines, each an object with `category` and `prompt`; other keys are ignored."""

import itertools
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

OWN_PROMPTS = Path(__file__).parents[1] / "prompts.jsonl"


class InvalidPrompts(Exception):
    """A prompt file that cannot be used; the text names file, line and reason."""


@dataclass(frozen=True)
class Prompt:
    """One user turn, without a chat template."""

    category: str
    text: str


def load_prompts(path: Path) -> list[Prompt]:
    """Read a prompt file. Raises InvalidPrompts."""
    try:
        lines = Path(path).read_text(encoding="utf-8").split("\n")
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidPrompts(f"{path} cannot be read: {error}") from error
    numbered = [(number, line) for number, line in enumerate(lines, 1) if line.strip()]
    prompts = [_parse_line(line, f"{path}, line {number}") for number, line in numbered]
    if not prompts:
        raise InvalidPrompts(f"{path} holds no prompt")
    return prompts


def _parse_line(line: str, place: str) -> Prompt:
    try:
        record = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise InvalidPrompts(f"{place}: not valid JSON: {error}") from error
    if not isinstance(record, dict):
        raise InvalidPrompts(f"{place}: expected an object with category and prompt")
    for key in ("category", "prompt"):
        if not isinstance(record.get(key), str) or not record[key].strip():
            raise InvalidPrompts(f"{place}: {key} must be a non-empty string")
    return Prompt(record["category"], record["prompt"])


def spread(prompts: Sequence[Prompt], count: int) -> list[Prompt]:
    """The first `count` prompts, taking the categories in turn; all of them if there are fewer."""
    by_category: dict[str, list[Prompt]] = {}
    for prompt in prompts:
        by_category.setdefault(prompt.category, []).append(prompt)
    in_turn = itertools.chain.from_iterable(itertools.zip_longest(*by_category.values()))
    return [prompt for prompt in in_turn if prompt is not None][:count]
