"""Traversal verification over sparse proposal rows: whole paths are accepted, leaves first.

At a node that is reached with weight w (1 at the anchor), target p and proposal row q, for its
children x in order:

    weight of x = min(1, w p(x) / q(x)), and then, as if x were rejected,
    S <- sum (w p - q)+;   p <- norm((w p - q)+);   w <- S / (S + 1 - w);   q <- norm(q without x)

Where the row is empty, q is the point mass on x. The accepted node is the first, children before
their parent and in order, whose uniform lies below the w that its children left it; the anchor
always is. The bonus token is drawn from the p that they left. Weights are exp(scaled) under
sampling.filters, uniforms those of sampling.noise, stream ACCEPT at the position of
the token below the anchor: the test of a node has the node's number, the draw of the bonus 0.

Promises and tolerance are those of sampling.recursive_rejection, except that a tree which
holds a row that cannot be sampled or a child that is not in its row, at a node of positive weight,
is refused as a whole: nothing accepted and bonus token -1.
"""

import itertools
from dataclasses import dataclass

import numpy as np
import torch

from canopy_kernels.sampling.noise import ACCEPT, uniform
from canopy_kernels.sampling.recursive_rejection import dense_row, dense_weights
from canopy_kernels.sampling.traversal_triton import launch_traversal
from canopy_kernels.sampling.trees import ProposalRows, Trees, VerificationResults


def traversal(
    trees: Trees,
    rows: ProposalRows,
    logits: torch.Tensor,
    thresholds: torch.Tensor,
    seeds: torch.Tensor,
    positions: torch.Tensor,
) -> VerificationResults:
    """The verdicts of all sequences.

    logits: [N, V], one row per node. thresholds: float32 [N, 4] of `row_thresholds`. seeds: int64
    [S], the bits of unsigned seeds. positions: int64 [S], where the token below the anchor stands.
    """
    decide = launch_traversal if logits.is_cuda else traversal_reference
    return decide(trees, rows, logits, thresholds, seeds, positions)


def traversal_reference(
    trees: Trees,
    rows: ProposalRows,
    logits: torch.Tensor,
    thresholds: torch.Tensor,
    seeds: torch.Tensor,
    positions: torch.Tensor,
) -> VerificationResults:
    """The same over dense weights, by recursion."""
    results = VerificationResults.empty(trees)
    for sequence, (first, end) in enumerate(itertools.pairwise(trees.node_starts.tolist())):
        tree = _DenseTree(
            trees.token_ids[first:end].tolist(),
            trees.parents[first:end].tolist(),
            [dense_weights(logits[node], thresholds[node]) for node in range(first, end)],
            [dense_row(rows, node, logits.shape[1]) for node in range(first, end)],
            (int(seeds[sequence]) % 2**64, int(positions[sequence])),
        )
        bonus, *path = tree.visit(0, 1.0) or []
        result = [len(path) - 1, bonus, *path[-2::-1]]
        results.table[sequence, : len(result)] = torch.tensor(result)
    return results


@dataclass(frozen=True)
class _DenseTree:
    """One sequence; targets and probs float64 [V] per node, unnormalized."""

    token_ids: list[int]
    parents: list[int]
    targets: list[np.ndarray]
    probs: list[np.ndarray | None]
    noise: tuple[int, int]

    def visit(self, node: int, weight: float) -> list[int] | None:
        """Bonus token and path, deepest node first, if this node or one below it is accepted."""
        if weight == 0.0:
            return None
        measure = self.targets[node] * (weight / self.targets[node].sum())
        probs = self.probs[node]
        for child in (c for c, parent in enumerate(self.parents) if parent == node):
            token = self.token_ids[child]
            offered, weight, measure, probs = _offer(measure, weight, probs, token)
            found = self.visit(child, offered)
            if found is not None:
                return [*found, node]
        if node > 0 and uniform(*self.noise, node, ACCEPT) >= weight:
            return None
        running = np.cumsum(measure)
        point = uniform(*self.noise, 0, ACCEPT) * running[-1]
        return [int(np.searchsorted(running, point, side="right")), node]


def _offer(
    measure: np.ndarray, weight: float, probs: np.ndarray | None, token: int
) -> tuple[float, float, np.ndarray, np.ndarray | None]:
    """The child's weight, and weight, measure and row as its rejection leaves them."""
    point = np.eye(1, len(measure), token)[0]
    proposal = point if probs is None else probs / probs.sum()
    offered = min(1.0, measure[token] / proposal[token])
    measure = np.maximum(measure - proposal, 0.0)
    total = measure.sum()
    rejection = total + (1.0 - weight)
    rest = None if probs is None else probs * (1.0 - point)
    if rejection == 0.0:
        return 1.0, weight, measure, rest
    return offered, total / rejection, measure / rejection, rest
