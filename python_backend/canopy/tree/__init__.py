"""Draft trees: the type, proposals, ragged packing. numpy only; imports no stage, no engine."""

from canopy.tree.draft_tree import DraftTree
from canopy.tree.forest import Forest
from canopy.tree.proposal import Proposal, ProposalRow

__all__ = ["DraftTree", "Forest", "Proposal", "ProposalRow"]
