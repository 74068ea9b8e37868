"""The three stages, as the engine sees them. Real and remote ones answer alike."""

from typing import Protocol

from canopy.protocol.messages import (
    BuildReply,
    BuildRequest,
    DraftReply,
    DraftRequest,
    VerifyReply,
    VerifyRequest,
)


class Drafter(Protocol):
    """Owns the proposal sources and their context caches."""

    def draft(self, request: DraftRequest) -> DraftReply:
        """Apply the changes, then propose. Raises StageFailed when the stage is gone."""
        ...


class TreeBuilder(Protocol):
    """Keeps nothing about a sequence."""

    def build(self, request: BuildRequest) -> BuildReply:
        """Select nodes. Raises StageFailed when the stage is gone."""
        ...


class Verifier(Protocol):
    """Owns the target, its KV cache and acceptance."""

    def verify(self, request: VerifyRequest) -> VerifyReply:
        """Apply the changes, run one forward, accept, commit.

        Raises StageFailed when the stage is gone; every sequence must then be started again.
        """
        ...
