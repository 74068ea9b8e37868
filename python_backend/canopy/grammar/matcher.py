"""Which tokens a grammar lets follow every node of a tree.

One matcher walks the tree depth first and takes tokens back on its way: a node costs one mask
and one token. Where the text is complete the end-of-sequence tokens are allowed; where it can
only end, nothing else is.
"""

import llguidance
import numpy as np

from canopy.tree import DraftTree


class GrammarMatcher:
    """The state of one sequence's text, after its committed tokens."""

    def __init__(self, matcher: llguidance.LLMatcher, vocab_size: int) -> None:
        self._matcher = matcher
        self._num_words = -(-vocab_size // 32)

    def commit(self, token_ids: list[int]) -> None:
        """Emitted tokens, in order. Raises ValueError for one that the grammar forbids."""
        num_taken = self._matcher.try_consume_tokens(token_ids)
        self._check()
        if num_taken < len(token_ids):
            raise ValueError(f"the grammar forbids the emitted token {token_ids[num_taken]}")

    @property
    def is_complete(self) -> bool:
        """The text matches as it is, so that it may end here."""
        return self._matcher.is_accepting()

    @property
    def is_finished(self) -> bool:
        """Nothing but an end-of-sequence token can follow."""
        return self._matcher.is_stopped()

    def masks(self, tree: DraftTree) -> np.ndarray:
        """uint32 [num_nodes + 1, ceil(V / 32)]: bit t % 32 of word t // 32 allows token t.

        The anchor is the last committed token. A node that cannot be reached, since the grammar
        forbids its token or one above, or the text ended above it, has no bit set. Raises
        ValueError when a limit of the library is reached; the committed state is then lost.
        """
        masks = np.zeros((tree.num_nodes + 1, self._num_words), np.uint32)
        self._fill(masks[0])
        num_taken = 0
        waiting = [(child, 0) for child in reversed(tree.children[0])]
        while waiting:
            node, num_above = waiting.pop()
            self._take_back(num_taken - num_above)
            num_taken = num_above
            token_id = int(tree.token_ids[node])
            if not self._matcher.try_consume_tokens([token_id]):
                continue
            num_taken += 1
            self._fill(masks[node])
            waiting += [(child, num_taken) for child in reversed(tree.children[node])]
        self._take_back(num_taken)
        return masks

    def forced(self) -> list[int]:
        """Tokens that spell the text which must come next; often none. To be drafted for free."""
        forced = self._matcher.compute_ff_tokens()
        self._check()
        return forced

    def _fill(self, mask: np.ndarray) -> None:
        self._matcher.unsafe_compute_mask_ptr(mask.ctypes.data, mask.nbytes)
        self._check()

    def _take_back(self, num_tokens: int) -> None:
        if num_tokens:
            self._matcher.rollback(num_tokens)
            self._check()

    def _check(self) -> None:
        if self._matcher.is_error():
            raise ValueError(f"the grammar cannot go on: {self._matcher.get_error()[:300]}")


def allowed_tokens(mask: np.ndarray, vocab_size: int) -> np.ndarray:
    """bool [..., V] of masks uint32 [..., ceil(V / 32)]."""
    bits = np.unpackbits(mask.view(np.uint8), axis=-1, bitorder="little")
    return bits[..., :vocab_size].astype(bool)


def reachable_nodes(masks: np.ndarray) -> np.ndarray:
    """Drafted nodes that the grammar permits, for `DraftTree.subtree`; masks as of the tree."""
    return np.flatnonzero(masks[1:].any(axis=1)) + 1
