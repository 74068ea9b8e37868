"""What a network that drafts whole blocks offers to the source."""

from collections.abc import Sequence
from typing import Protocol

import numpy as np

from canopy.drafter.source import DraftSequence
from canopy.protocol.hidden_states import HiddenStates


class NextTokens(Protocol):
    """The distributions below one anchor in one step."""

    @property
    def num_rows(self) -> int:
        """Depths that the block covers."""
        ...

    def after(self, path: Sequence[int], num: int) -> tuple[np.ndarray, np.ndarray, float]:
        """The `num` likeliest next tokens below a path of fewer than `num_rows`; best first.

        int32 [n] token ids, float32 [n] log-probs that sum to 1 at most, the entropy in bits.
        """
        ...


class BlockModel(Protocol):
    """A block drafter or a published head, loaded, with the contexts of its sequences."""

    def take_hidden_states(self, hidden_states: dict[int, HiddenStates]) -> None:
        """Positions that the target has computed, by sequence."""
        ...

    def distributions(self, sequences: Sequence[DraftSequence]) -> dict[int, NextTokens]:
        """One pass, for the sequences whose context reaches their anchor; by sequence.

        Raises for a pass that fails, ValueError for non-finite outputs; the contexts stay
        usable.
        """
        ...

    def finish(self, sequence_id: int) -> None:
        """Drop a sequence; unknown ids do nothing."""
        ...
