"""Which tokens a grammar lets follow the nodes of a tree.

One matcher goes from path to path and takes tokens back on its way: below a shared beginning a
node costs one mask and one token. Where the text is complete the end-of-sequence tokens are
allowed; where it can only end, nothing else is.
"""

from collections.abc import Sequence

import llguidance
import numpy as np


class GrammarMatcher:
    """The state of one sequence's text, after its committed tokens.

    A path is the tokens from below the anchor, the last committed token, down to a node. Methods
    raise ValueError when a limit of the library is reached; the committed state is then lost.
    """

    def __init__(self, matcher: llguidance.LLMatcher, vocab_size: int) -> None:
        self._matcher = matcher
        self._num_words = -(-vocab_size // 32)
        self._path: list[int] = []  # tokens taken beyond the committed ones

    def commit(self, token_ids: Sequence[int]) -> None:
        """Emitted tokens, in order. Raises ValueError for one that the grammar forbids."""
        self._go_to([])
        num_taken = self._matcher.try_consume_tokens(list(token_ids))
        self._check()
        if num_taken < len(token_ids):
            raise ValueError(f"the grammar forbids the emitted token {token_ids[num_taken]}")

    @property
    def is_complete(self) -> bool:
        """The text matches as it is, so that it may end here."""
        self._go_to([])
        return self._matcher.is_accepting()

    @property
    def is_finished(self) -> bool:
        """Nothing but an end-of-sequence token can follow."""
        self._go_to([])
        return self._matcher.is_stopped()

    def masks(self, paths: Sequence[Sequence[int]]) -> np.ndarray:
        """uint32 [len(paths), ceil(V / 32)]: bit t % 32 of word t // 32 allows token t.

        No bit is set where the grammar forbids a token of the path, or the text ended within it.
        """
        masks = np.zeros((len(paths), self._num_words), np.uint32)
        for path, mask in zip(paths, masks, strict=True):
            if self._go_to(path):
                self._matcher.unsafe_compute_mask_ptr(mask.ctypes.data, mask.nbytes)
                self._check()
        return masks

    def forced(self, path: Sequence[int]) -> list[int]:
        """Tokens that spell the text which must follow a path; often none."""
        if not self._go_to(path):
            return []
        forced = self._matcher.compute_ff_tokens()
        self._check()
        return forced

    def _go_to(self, path: Sequence[int]) -> bool:
        """Take the tokens of a path; False when the grammar forbids one of them."""
        pairs = enumerate(zip(self._path, path, strict=False))
        shortest = min(len(self._path), len(path))
        num_shared = next((i for i, (taken, token) in pairs if taken != token), shortest)
        if num_shared < len(self._path):
            self._matcher.rollback(len(self._path) - num_shared)
            del self._path[num_shared:]
        if num_shared < len(path):
            num_taken = self._matcher.try_consume_tokens(list(path[num_shared:]))
            self._path += path[num_shared : num_shared + num_taken]
        self._check()
        return len(self._path) == len(path)

    def _check(self) -> None:
        if self._matcher.is_error():
            raise ValueError(f"the grammar cannot go on: {self._matcher.get_error()[:300]}")


def allowed_tokens(mask: np.ndarray, vocab_size: int) -> np.ndarray:
    """bool [..., V] of masks uint32 [..., ceil(V / 32)]."""
    bits = np.unpackbits(mask.view(np.uint8), axis=-1, bitorder="little")
    return bits[..., :vocab_size].astype(bool)
