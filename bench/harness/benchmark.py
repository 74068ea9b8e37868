"""What a benchmark is given, what it gives back, and how it is listed."""

import argparse
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from bench.harness.prompts import Prompt
from canopy.config import Deployment

Record = dict[str, Any]


@dataclass(frozen=True)
class Options:
    """Options of every benchmark; `arguments` holds those that one benchmark added."""

    deployment: Deployment
    prompts: list[Prompt]
    is_quick: bool = False
    arguments: argparse.Namespace = field(default_factory=argparse.Namespace)


@dataclass(frozen=True)
class Result:
    """`details`: tables as lists of flat records with the same keys. `figures`: name -> number."""

    figures: dict[str, float]
    details: dict[str, list[Record]]


class Skipped(Exception):
    """This machine cannot run the benchmark; the text says why. Not a failure."""


@dataclass(frozen=True)
class Benchmark:
    """One entry of the door."""

    name: str
    description: str  # one line
    run: Callable[[Options], Result]
    add_arguments: Callable[[argparse.ArgumentParser], None] = lambda parser: None
    reads_profile: bool = False  # trees are priced, by what was measured on this machine
