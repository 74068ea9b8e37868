"""What a block drafter knows of prefixes, for sequences whose target computes only what is new.

Where the target takes a prefix from its cache, no features come for it. Whole blocks of keys and
values are kept here under the text up to their end, as the target keeps its own.
"""

from collections import OrderedDict

import numpy as np

from canopy.kv_cache.block_manager import block_digest

BLOCK = 16  # positions; the target reuses whole blocks too
_MAX_BLOCKS = 1024  # of some 50 kB for a small target


class PrefixDigests:
    """Names of one sequence's blocks, each made of all text up to the block's end."""

    def __init__(self) -> None:
        self._digests: list[bytes] = []

    def up_to(self, token_ids: list[int], num_blocks: int) -> list[bytes]:
        """Of the first blocks. token_ids: the sequence, which only ever grows."""
        while len(self._digests) < num_blocks:
            first = len(self._digests) * BLOCK
            before = self._digests[-1] if self._digests else b""
            self._digests.append(block_digest(before, token_ids[first : first + BLOCK]))
        return self._digests[:num_blocks]


class PrefixBlocks:
    """The blocks used last."""

    def __init__(self, max_blocks: int = _MAX_BLOCKS) -> None:
        self._max_blocks = max_blocks
        self._blocks: OrderedDict[bytes, np.ndarray] = OrderedDict()

    def keep(self, digests: list[bytes], first: int, start: int, key_values: np.ndarray) -> None:
        """Keep whole blocks of the positions from `start` on.

        digests: of all whole blocks. first: position of the first of key_values, [n, ...].
        """
        for index in range(start // BLOCK, len(digests)):
            row = index * BLOCK - first
            if row >= 0:
                self._blocks[digests[index]] = key_values[row : row + BLOCK].copy()
                self._blocks.move_to_end(digests[index])
        while len(self._blocks) > self._max_blocks:
            self._blocks.popitem(last=False)

    def before(self, digests: list[bytes], window: int) -> list[np.ndarray]:
        """Known blocks right before the end of the last one, as many as a window holds."""
        found: list[np.ndarray] = []
        for digest in reversed(digests):
            if digest not in self._blocks or (len(found) + 1) * BLOCK > window:
                break
            self._blocks.move_to_end(digest)
            found.append(self._blocks[digest])
        return found[::-1]
