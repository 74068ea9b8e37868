"""Traversal verification: whole paths are accepted, from the leaves to the anchor.

At a node that is reached with weight w, target p and proposal row q, for its children x in the
order they were drawn:

    go on at x with weight min(1, w p(x) / q(x)); if nothing there is accepted
        S <- sum (w p - q)+          what the proposal left to the target
        p <- norm((w p - q)+)
        w <- S / (S + 1 - w)
        q <- norm(q without x)       what the next child was drawn from

and after the last child accept the path to the node with probability w, and draw the bonus from
p. The anchor has weight 1, so it is accepted where nothing else is.

Lossless by induction from the leaves: a node reached with weight w and target p is accepted, it
or one below it, with probability w over the draws below it, and what follows it then has
distribution p. For drawn x that is the probability q(x) min(1, w p(x) / q(x)) = min(q(x), w p(x)).
The target still wants (w p - q)+, of sum S, and the others of probability 1 - (w - S) are rejected:
over them it is the distribution norm((w p - q)+), to be reached with probability S / (S + 1 - w),
from children drawn from q without x. The shape of the tree must be as predictable as in recursive
rejection.

At weight 1 a node is decided as in recursive rejection. Below, a child may make up for parents of
small weight, so chains are accepted further, never less far; trees as a rule, since min(q, w p)
for an early child can leave its siblings less than their share.
Source: Weng et al., "Traversal Verification for Speculative Tree Decoding" (2025).
"""

from collections.abc import Callable

import numpy as np

from canopy.acceptance.random_source import RandomSource
from canopy.acceptance.rejection import Residual
from canopy.acceptance.result import VerificationResult
from canopy.tree import DraftTree, ProposalRow


def traverse(
    tree: DraftTree,
    rows: list[ProposalRow],
    target_weights: Callable[[int], np.ndarray],
    random_source: RandomSource,
) -> VerificationResult:
    """The accepted path and the bonus token of one tree.

    rows: one per node, the anchor included; deterministic children below an empty one.
    target_weights: of a node, float64 [V], the target's distribution up to a factor; asked once at
    most, and not for leaves that are rejected or for what is below a path of weight 0. chance: the
    test of a node has the node's number, the draw of the bonus 0: the anchor needs no test. Raises
    ValueError for a child that cannot have been drawn from its row.
    """

    def visit(node: int, weight: float) -> VerificationResult | None:
        """The verdict, if the path to this node or to one below it is accepted."""
        if weight == 0.0:
            return None
        unnormalized_probs = None
        if tree.children[node]:
            residual = Residual(target_weights(node), rows[node], weight)
            for child in tree.children[node]:
                result = visit(child, residual.accept_probability(int(tree.token_ids[child])))
                if result is not None:
                    return result
            weight, unnormalized_probs = residual.weight, residual.unnormalized_probs
        if node > 0 and not random_source.bernoulli(weight, node):
            return None
        if unnormalized_probs is None:
            unnormalized_probs = target_weights(node)
        return VerificationResult(tree.path(node), random_source.sample(unnormalized_probs, 0))

    result = visit(0, 1.0)
    assert result is not None, "the anchor has weight 1"
    return result
