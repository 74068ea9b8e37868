"""What a round adds to its sequence, and the walk from the anchor that most rules share."""

from collections.abc import Callable
from dataclasses import dataclass

from canopy.tree import DraftTree


@dataclass(frozen=True)
class VerificationResult:
    """What a round adds: the drafted nodes on the accepted path, in order, and one token more."""

    path: list[int]
    bonus: int

    def token_ids(self, tree: DraftTree) -> list[int]:
        """The emitted tokens: the path's, then the bonus."""
        return [int(tree.token_ids[node]) for node in self.path] + [self.bonus]


def walk(tree: DraftTree, decide: Callable[[int], int]) -> VerificationResult:
    """Follow the decided tokens down the tree; `decide(node)` is the token after a node.

    Where a child carries the token the walk goes on below it, elsewhere the token is the bonus.
    """
    path: list[int] = []
    node = 0
    while True:
        token = decide(node)
        child = tree.child(node, token)
        if child is None:
            return VerificationResult(path, token)
        path.append(child)
        node = child
