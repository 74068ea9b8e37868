"""What one sequence may bring to the verifier; a sequence that brings more fails alone.

Kernels read token ids and positions as addresses, so nothing unchecked may reach them.
"""

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from canopy.protocol.sequence_updates import StartedSequence
from canopy.tree import DraftTree, ProposalRow


@dataclass(frozen=True)
class TargetLimits:
    """Of the target and its cache."""

    vocab_size: int
    max_positions: int  # of one sequence, by its model
    max_cached_tokens: int  # of the whole cache

    def check_start(self, new: StartedSequence) -> None:
        """Raises ValueError for a sequence that cannot be taken up."""
        num_tokens = len(new.token_ids)
        if num_tokens == 0:
            raise ValueError("a sequence starts with one token or more")
        if num_tokens > min(self.max_positions, self.max_cached_tokens):
            raise ValueError(
                f"{num_tokens} tokens are more than the model ({self.max_positions}) or the cache "
                f"({self.max_cached_tokens}) holds"
            )
        self._check_tokens("a token", new.token_ids)
        self._check_tokens("a stop token", np.array(new.params.stop_token_ids, np.int64))

    def check_tree(self, num_tokens: int, tree: DraftTree, rows: Iterable[ProposalRow]) -> None:
        """Raises ValueError for what a sequence of `num_tokens` tokens cannot have verified."""
        self._check_tokens("a drafted token", tree.token_ids)
        for row in rows:
            self._check_tokens("a token of a proposal row", row.token_ids)
        # No tree is deeper than it has nodes: most need no closer look.
        if num_tokens + tree.num_nodes > self.max_positions:
            deepest = num_tokens + int(tree.depths.max())
            if deepest > self.max_positions:
                raise ValueError(f"the model's {self.max_positions} positions end before {deepest}")

    def _check_tokens(self, what: str, token_ids: np.ndarray) -> None:
        if len(token_ids) == 0:
            return
        for token_id in (token_ids.min(), token_ids.max()):
            if not 0 <= token_id < self.vocab_size:
                raise ValueError(
                    f"{what} is {token_id}, outside the target's vocabulary of {self.vocab_size}"
                )
