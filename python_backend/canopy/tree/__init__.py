"""Draft trees: the type, masks and paths. numpy only; never imports a stage or the engine."""

from canopy.tree.draft_tree import DraftTree
from canopy.tree.forest import Forest

__all__ = ["DraftTree", "Forest"]
