"""Where proposals come from: sources behind one Protocol, and the growth that they share."""

from canopy.stages.sources.source import DraftSequence, ProposalSource

__all__ = ["DraftSequence", "ProposalSource"]
