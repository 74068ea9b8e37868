"""How often each token stands in a sequence, for penalties."""

from collections.abc import Sequence

import numpy as np


class TokenCounts:
    """Of prompt and emitted tokens; those of the prompt are known, and count as 0."""

    def __init__(self, prompt_token_ids: Sequence[int]) -> None:
        self._token_ids = np.unique(np.asarray(prompt_token_ids, np.int64))
        self._counts = np.zeros(len(self._token_ids), np.int64)

    def commit(self, token_ids: Sequence[int]) -> None:
        """Emitted tokens."""
        self._token_ids, self._counts = self.after(token_ids)

    def after(self, path: Sequence[int]) -> tuple[np.ndarray, np.ndarray]:
        """If `path` were emitted next: int64 [n] distinct token ids, rising, and times emitted."""
        if not len(path):
            return self._token_ids, self._counts
        new, new_counts = np.unique(np.asarray(path, np.int64), return_counts=True)
        token_ids = np.union1d(self._token_ids, new)
        counts = np.zeros(len(token_ids), np.int64)
        counts[np.searchsorted(token_ids, self._token_ids)] = self._counts
        counts[np.searchsorted(token_ids, new)] += new_counts
        return token_ids, counts
