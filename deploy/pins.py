"""Prints what pyproject.toml pins, one requirement a line, for the layers of the Dockerfile.

    pins.py [EXTRA ...]                      everything, and these extras
    pins.py --only NAME [NAME ...] [EXTRA]   of the runtime these packages alone, and these extras

Standard library only: it runs before anything is installed.
"""

import re
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

PROJECT = Path(__file__).parents[1] / "pyproject.toml"


def pins(arguments: list[str]) -> list[str]:
    """The requirements. Raises ValueError for a name that the project does not have."""
    project = tomllib.loads(PROJECT.read_text(encoding="utf-8"))["project"]
    extras = project["optional-dependencies"]
    by_name = {_name(line): line for line in project["dependencies"]}
    only = "--only" in arguments
    lines = [] if only else list(by_name.values())
    for argument in arguments:
        if argument in extras:
            lines += _extra(extras, argument)
        elif argument in by_name:
            lines.append(by_name[argument])
        elif argument != "--only":
            raise ValueError(f"{argument!r} is neither a dependency nor an extra")
    return sorted(set(lines))


def _extra(extras: dict[str, list[str]], extra: str) -> Iterator[str]:
    """An extra may take others in: `canopy-serving[a,b]`."""
    for line in extras[extra]:
        if inner := re.fullmatch(r"canopy-serving\[(.+)\]", line):
            for name in inner[1].split(","):
                yield from _extra(extras, name.strip())
        else:
            yield line


def _name(requirement: str) -> str:
    return re.split(r"[\[<>=!~ ;]", requirement, maxsplit=1)[0]


if __name__ == "__main__":
    print("\n".join(pins(sys.argv[1:])))
