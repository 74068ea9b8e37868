"""Writes the tables of docs/ that follow from the code: `python -m docs.generate`.

A page holds them between two markers; a test fails when a table is not what this would write.
"""

import dataclasses
import re
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Any, get_type_hints

from canopy.config import Deployment
from canopy.engine.metric_families import FAMILIES, PREFIX, Kind

FOLDER = Path(__file__).parent
DEFAULT_FILE = FOLDER.parent / "deploy" / "default.toml"
_MARKED = "<!-- generated: {} -->\n"
_END = "<!-- end of generated -->"
_KEY_LINE = re.compile(r"^(\w+) = (.+?)\s*(?:#\s*(.*))?$")


def metrics_table() -> str:
    """Every family of canopy_ metrics."""
    rows = [("metric", "kind", "label", "meaning")]
    for family in FAMILIES:
        label = "`le`" if family.kind is Kind.HISTOGRAM else family.label and f"`{family.label}`"
        name = f"`{PREFIX}{family.name}`"
        rows.append((name, family.kind.value, label, family.description))
    return _table(rows)


def configuration_tables() -> str:
    """Every key of a deployment file: defaults of canopy.config, words of deploy/default.toml."""
    words = _words(DEFAULT_FILE.read_text(encoding="utf-8"))
    parts = []
    for name, kind in get_type_hints(Deployment).items():
        hints = get_type_hints(kind)
        rows = [("key", "type", "default", "")]
        for field in dataclasses.fields(kind):
            default = f"`{_toml(field.default)}`"
            meaning = words.get((name, field.name), "")
            rows.append((f"`{field.name}`", hints[field.name].__name__, default, meaning))
        parts.append(f"### [{name}]\n\n{kind.__doc__}\n\n{_table(rows)}")
    return "\n".join(parts)


PAGES = {"metrics.md": metrics_table, "configuration.md": configuration_tables}


def rendered(page: str) -> str:
    """The whole page with its table as the code has it now."""
    text = (FOLDER / page).read_text(encoding="utf-8")
    marker = _MARKED.format(page.removesuffix(".md"))
    head, found, rest = text.partition(marker)
    _, ended, tail = rest.partition(_END)
    if not found or not ended:
        raise ValueError(f"docs/{page} lacks the markers of its generated part")
    return f"{head}{marker}\n{PAGES[page]()}\n{_END}{tail}"


def _words(text: str) -> dict[tuple[str, str], str]:
    """The comment of every key; a line that is nothing but a comment goes on with the last one."""
    words: dict[tuple[str, str], str] = {}
    table, last = "", None
    for line in text.splitlines():
        if line.startswith("["):
            table, last = line[1 : line.index("]")], None
        elif found := _KEY_LINE.match(line):
            last = (table, found[1])
            words[last] = found[3] or ""
            tomllib.loads(f"{found[1]} = {found[2]}")
        elif last and line.strip().startswith("#"):
            words[last] += f" {line.strip('# ')}"
    return words


def _toml(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else repr(value).replace("'", '"')


def _table(rows: Sequence[tuple[str, ...]]) -> str:
    escaped = [[cell.replace("|", "\\|") for cell in row] for row in rows]
    head, *body = ("| " + " | ".join(row) + " |" for row in escaped)
    rule = "| " + " | ".join("---" for _ in rows[0]) + " |"
    return "\n".join([head, rule, *body]) + "\n"


def main() -> None:
    """Rewrite every page."""
    for page in PAGES:
        (FOLDER / page).write_text(rendered(page), encoding="utf-8")


if __name__ == "__main__":
    main()
