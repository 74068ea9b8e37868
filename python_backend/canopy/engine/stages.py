"""The three stages of the engine, as one value."""

from collections.abc import Callable
from dataclasses import dataclass

from canopy.protocol.stages import Drafter, TreeBuilder, Verifier


@dataclass(frozen=True)
class Stages:
    """The pipeline by its names: draft, tree_builder, verifier."""

    drafter: Drafter
    tree_builder: TreeBuilder
    verifier: Verifier
    restart: Callable[[str], None] = lambda stage: None  # a failed one; raises when that fails too
    ping: Callable[[str], None] = lambda stage: None  # raises StageFailed when nobody answers
