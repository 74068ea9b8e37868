"""What a block drafter knows of one sequence: the keys and values of a window of positions."""

import numpy as np

from canopy.drafter.block.prefix_cache import BLOCK, PrefixBlocks, PrefixDigests
from canopy.protocol.hidden_states import HiddenStates


class BlockContext:
    """Grows by the features that come; positions that do not follow start it anew."""

    def __init__(self, window: int) -> None:
        self.pending: HiddenStates | None = None  # not encoded yet
        self.end = 0  # position behind the last encoded one
        self.last = np.zeros(0, np.float32)  # [E] context vector of the last encoded position
        self.key_values = np.zeros(0, np.float32)  # [n, layers, 2, K, D], n <= window
        self._window = window
        self._digests = PrefixDigests()

    @property
    def first(self) -> int:
        """Position of the first of `key_values`."""
        return self.end - len(self.key_values)

    def add(self, hidden_states: HiddenStates) -> None:
        """Further positions, or some of them anew."""
        if len(hidden_states.states):
            whole = self.pending.joined(hidden_states) if self.pending else hidden_states
            self.pending = whole.last(self._window)

    def settle(self, last: np.ndarray, key_values: np.ndarray) -> None:
        """The pending positions, encoded. last: [E]; key_values: [n, layers, 2, K, D]."""
        assert self.pending is not None
        if self.first <= self.pending.start <= self.end and len(self.key_values):
            kept = self.key_values[: self.pending.start - self.first]
            key_values = np.concatenate([kept, key_values])
        self.key_values = key_values[-self._window :]
        self.last, self.end, self.pending = last, self.pending.end, None

    # Prefixes that other sequences had, too

    def recall(self, prefixes: PrefixBlocks, token_ids: list[int]) -> None:
        """Where the first features do not begin with the text, take up what stood before them."""
        start = self.pending.start if self.pending and not self.end else 0
        if start % BLOCK == 0:
            known = prefixes.before(self._digests.up_to(token_ids, start // BLOCK), self._window)
            if known:
                self.key_values, self.end = np.concatenate(known), start

    def remember(self, prefixes: PrefixBlocks, token_ids: list[int], start: int) -> None:
        """Keep the whole blocks of the positions from `start` on."""
        digests = self._digests.up_to(token_ids, self.end // BLOCK)
        prefixes.keep(digests, self.first, start, self.key_values)
