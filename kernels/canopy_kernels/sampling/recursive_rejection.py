"""Recursive rejection over sparse proposal rows: the accepted path and bonus token of every tree.

At a node with target weights p (sum m) and proposal row q, for its children x in order:

    accept x if uniform(index of x) * m q(x) < p(x); otherwise
        p <- (p - m q)+;   m <- sum p;   q <- norm(q without x)

and after the last child the token is drawn from p: the first token whose running sum over ids
passes uniform(number of children) * m. Where the row is empty, q is the point mass on x. The walk
goes on below the accepted child. Weights are exp(scaled) under sampling.filters, uniforms
those of sampling.noise, stream ACCEPT at the position of the token. Children of one node
carry different tokens, temperatures are positive, and a walk that meets a row that cannot be
sampled, or a child that is not in its row, ends with bonus token -1.

All arithmetic on weights is float64, so ids equal the CPU's but where a uniform falls within
rounding (1e-7 relative, from float32's exponential) of the border between two outcomes.
"""

import itertools

import numpy as np
import torch

from canopy_kernels.sampling.filters import kept_scaled_reference
from canopy_kernels.sampling.noise import ACCEPT, uniform
from canopy_kernels.sampling.recursive_rejection_triton import launch_recursive_rejection
from canopy_kernels.sampling.trees import ProposalRows, Trees, VerificationResults


def recursive_rejection(
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
    decide = launch_recursive_rejection if logits.is_cuda else recursive_rejection_reference
    return decide(trees, rows, logits, thresholds, seeds, positions)


def recursive_rejection_reference(
    trees: Trees,
    rows: ProposalRows,
    logits: torch.Tensor,
    thresholds: torch.Tensor,
    seeds: torch.Tensor,
    positions: torch.Tensor,
) -> VerificationResults:
    """The same over dense weights, by plain loops."""
    results = VerificationResults.empty(trees)
    for sequence, (first, end) in enumerate(itertools.pairwise(trees.node_starts.tolist())):
        token_ids, parents = trees.token_ids[first:end].tolist(), trees.parents[first:end].tolist()
        seed, position = int(seeds[sequence]) % 2**64, int(positions[sequence])
        path: list[int] = []
        child: int | None = 0
        while child is not None:
            node = child
            children = [c for c, parent in enumerate(parents) if parent == node]
            child, bonus = _decide(
                dense_weights(logits[first + node], thresholds[first + node]),
                dense_row(rows, first + node, logits.shape[1]),
                [(c, token_ids[c]) for c in children],
                (seed, position + len(path)),
            )
            path += [] if child is None else [child]
        result = [len(path), bonus, *path]
        results.table[sequence, : len(result)] = torch.tensor(result)
    return results


def dense_weights(logits: torch.Tensor, thresholds: torch.Tensor) -> np.ndarray:
    scaled = kept_scaled_reference(logits, thresholds)
    return np.exp(scaled.numpy()).astype(np.float64)


def dense_row(rows: ProposalRows, node: int, vocab_size: int) -> np.ndarray | None:
    """float64 [V] unnormalized, or None where the children are deterministic."""
    start, end = rows.starts[node : node + 2].tolist()
    if start == end:
        return None
    probs = np.zeros(vocab_size)
    probs[rows.token_ids[start:end].numpy()] = np.exp(rows.log_probs[start:end].double().numpy())
    return probs


def _decide(
    target: np.ndarray,
    probs: np.ndarray | None,
    children: list[tuple[int, int]],
    noise: tuple[int, int],
) -> tuple[int | None, int]:
    """The accepted child, or None and the bonus token."""
    seed, position = noise
    mass = target.sum()
    if not mass > 0.0:
        return None, -1
    for index, (child, token) in enumerate(children):
        point = np.eye(1, len(target), token)[0]
        proposal = mass * (point if probs is None else probs / (probs.sum() or 1.0))
        if proposal[token] <= 0.0:
            return None, -1
        if uniform(seed, position, index, ACCEPT) * proposal[token] < target[token]:
            return child, -1
        target = np.maximum(target - proposal, 0.0)
        mass = target.sum()
        if mass == 0.0:
            return child, -1
        if probs is not None:
            probs = probs * (1.0 - point)
    running = np.cumsum(target)
    threshold = uniform(seed, position, len(children), ACCEPT) * running[-1]
    return None, int(np.searchsorted(running, threshold, side="right"))
