"""Prints the pinned requirements of the project's distributions, for the layers of the Dockerfile.

    pins.py FOLDER[EXTRA,...] [FOLDER ...]     the runtime of these distributions, and these extras

Standard library only: it runs before anything is installed.
"""

import re
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
FLOATING = ("pip", "triton")  # pip is the tool itself; torch chooses the version of triton


def pins(distributions: list[str]) -> list[str]:
    """The requirements. Raises ValueError for an extra or a pin that the project does not have."""
    lines = {_name(line): line for each in distributions for line in _lines(each)}
    return [_pinned(name, lines[name]) for name in sorted(lines) if not name.startswith("canopy-")]


def _pinned(name: str, line: str) -> str:
    versions = constraints()
    if name in versions:
        return f"{re.split('[<>=]', line, maxsplit=1)[0]}=={versions[name]}"
    if name in FLOATING:
        return line
    raise ValueError(f"constraints.txt has no version of {name}")


def constraints() -> dict[str, str]:
    """The versions in constraints.txt, by name."""
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    return dict(line.split("==") for line in lines if line and not line.startswith("#"))


def _lines(distribution: str) -> Iterator[str]:
    folder, extras = re.fullmatch(r"([^\[]+)(?:\[(.+)\])?", distribution).groups()
    text = (ROOT / folder / "pyproject.toml").read_text(encoding="utf-8")
    project = tomllib.loads(text)["project"]
    yield from project["dependencies"]
    for extra in (extras or "").split(","):
        yield from _extra(project, extra) if extra else ()


def _extra(project: dict, extra: str) -> Iterator[str]:
    """An extra may take others in: `canopy-serving[a,b]`."""
    if extra not in project["optional-dependencies"]:
        raise ValueError(f"{project['name']} has no extra {extra!r}")
    for line in project["optional-dependencies"][extra]:
        if inner := re.fullmatch(rf"{project['name']}\[(.+)\]", line):
            for name in inner[1].split(","):
                yield from _extra(project, name.strip())
        else:
            yield line


def _name(requirement: str) -> str:
    return re.split(r"[\[<>=!~ ;]", requirement, maxsplit=1)[0]


if __name__ == "__main__":
    print("\n".join(pins(sys.argv[1:])))
