"""Acceptance of a block drafter on held-out answers, without a server.

Positions are those of the answers that the target wrote; a drafted path is accepted as far as it
is the answer. What is read is what the draft stage would read, `BlockDistributions`.
"""

import heapq
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from canopy.drafter.block.distributions import BlockDistributions, Copied
from canopy.drafter.block.markov_head import markov_head
from canopy.models.block_drafter.network import BlockDrafter
from canopy.models.block_drafter.runner import BlockRows
from canopy_training.block_drafter.data import Batches
from canopy_training.block_drafter.loss import decoded_rows, distillation_loss
from canopy_training.corpus.corpus import Answer

_BRANCH = 8  # children of a node that are looked at


@dataclass(frozen=True)
class Acceptance:
    """Means over evaluated positions; lengths count the target's own token."""

    loss: float
    chain_tau: float
    tree8_tau: float
    tree16_tau: float
    marginal16_tau: float
    row_accuracy: tuple[float, ...]  # of row k's best token, given the true parent


@torch.inference_mode()
def evaluate(
    drafter: BlockDrafter,
    answers: Sequence[Answer],
    num_anchors: int,
    num_candidates: int,
    seed: int = 0,
) -> Acceptance:
    """Evaluate at `num_anchors` random positions of every answer."""
    drafter.eval()
    batches = _batches(drafter)
    generator = np.random.default_rng(seed)
    head, markov, off = drafter.head(), markov_head(drafter), markov_head(drafter, is_on=False)
    losses, lengths, right = [], list[tuple[int, int, int, int]](), list[np.ndarray]()
    for answer in answers:
        batch = batches.of([answer], num_anchors, generator, decay=0.0).to(str(head.device))
        losses.append(float(distillation_loss(drafter, batch, head)))
        decoded = decoded_rows(drafter, batch)[0]
        logits = torch.nn.functional.linear(decoded, head).cpu().numpy()
        codes = drafter.markov_row(decoded).cpu().numpy()
        fields = (batch.parent_ids, batch.next_ids, batch.copied_ids, batch.match_lengths)
        arrays = [part[0].cpu().numpy() for part in fields]
        kept = batch.is_kept[0].cpu().numpy()
        for *of_rows, parents, tokens, following, length, exists in zip(
            logits, codes, *arrays, kept, strict=True
        ):
            rows, anchor, path = BlockRows(*of_rows), int(parents[0]), parents[1:].tolist()
            copied = Copied(int(length), following)
            distributions = BlockDistributions(rows, markov, anchor, num_candidates, copied=copied)
            best = np.array([distributions.after(path[:k], 1)[0][0] for k in range(len(parents))])
            hits = (best == tokens) & exists
            right.append(hits)
            marginals = BlockDistributions(rows, off, anchor, num_candidates)
            lengths.append(_lengths(distributions, marginals, tokens, hits))
    chain, tree8, tree16, marginal16 = (1.0 + np.mean(lengths, axis=0)).tolist()
    accuracy = tuple(np.mean(right, axis=0).tolist())
    return Acceptance(float(np.mean(losses)), chain, tree8, tree16, marginal16, accuracy)


def _lengths(
    distributions: BlockDistributions,
    marginals: BlockDistributions,
    tokens: np.ndarray,
    hits: np.ndarray,
) -> tuple[int, int, int, int]:
    """Accepted nodes of the chain, the trees of 8 and 16, and the tree of 16 on marginals."""
    chain = int(np.cumprod(hits).sum())
    order, flat = grown_paths(distributions, 16), grown_paths(marginals, 16)
    tree8, tree16, flat16 = (_accepted(paths, tokens) for paths in (order[:8], order, flat))
    return chain, tree8, tree16, flat16


def grown_paths(distributions: BlockDistributions, num_nodes: int) -> list[tuple[int, ...]]:
    """The most probable paths, most probable first; parents stand before their children."""
    frontier: list[tuple[float, tuple[int, ...]]] = [(0.0, ())]
    paths: list[tuple[int, ...]] = []
    while frontier and len(paths) <= num_nodes:
        cost, path = heapq.heappop(frontier)
        paths.append(path)
        if len(path) < distributions.num_rows:
            ids, log_probs, _ = distributions.after(path, _BRANCH)
            for token, log_prob in zip(ids, log_probs, strict=True):
                heapq.heappush(frontier, (cost - float(log_prob), (*path, int(token))))
    return paths[1:]


def _accepted(paths: Sequence[tuple[int, ...]], tokens: np.ndarray) -> int:
    truth = tuple(tokens.tolist())
    return max((len(path) for path in paths if path == truth[: len(path)]), default=0)


def _batches(drafter: BlockDrafter) -> Batches:
    config = drafter.config
    return Batches(drafter.draft_ids.cpu().numpy(), config.target_vocab_size, config.block_size)
