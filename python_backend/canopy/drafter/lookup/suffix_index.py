"""The suffix table of one growing sequence."""

from collections.abc import Sequence

import numpy as np

from canopy_kernels.ngram.suffix_table import append, new_suffix_table

_FIRST_CAPACITY = 256


class SuffixIndex:
    """Grows by one token in O(max_match), but for a recount whenever its length doubles."""

    def __init__(self, max_match: int) -> None:
        self.max_match = max_match
        self.num_given = 0  # tokens known before anything was drafted
        self.num_tokens = 0
        self.table = new_suffix_table(_FIRST_CAPACITY, max_match)

    def extend(self, token_ids: Sequence[int]) -> None:
        """Append tokens to the sequence."""
        if not token_ids:
            return
        needed = self.num_tokens + len(token_ids)
        if needed > len(self.table.token_ids):
            self._enlarge(1 << (needed - 1).bit_length())
        append(self.table, self.num_tokens, np.array(token_ids, np.int32))
        self.num_tokens = needed

    def suffix(self, path: Sequence[int], length: int) -> np.ndarray:
        """The last tokens, `length` at most, of the sequence followed by `path`; int32."""
        num_own = min(max(length - len(path), 0), self.num_tokens)
        own = self.table.token_ids[self.num_tokens - num_own : self.num_tokens]
        return np.concatenate([own, np.array(path[-length:], np.int32)])

    def _enlarge(self, capacity: int) -> None:
        known = self.table.token_ids[: self.num_tokens]
        self.table = new_suffix_table(capacity, self.max_match)
        append(self.table, 0, known)
