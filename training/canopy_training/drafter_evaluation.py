"""Acceptance of a block drafter on held-out answers, without a server.

Positions are those of the answers that the target wrote; a drafted path is accepted as far as it
is the answer. What is read is what the draft stage would read, `BlockConditionals`.
"""

import heapq
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from canopy.models.block_drafter import BlockDrafter
from canopy.stages.sources.block_conditionals import BlockConditionals, Copied, MarkovHead
from canopy.stages.sources.markov_head import markov_head
from canopy_training.corpus import Answer
from canopy_training.drafter_data import Batches
from canopy_training.drafter_loss import decoded_rows, distillation_loss

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
    head, markov = drafter.head(), markov_head(drafter)
    losses, lengths, right = [], list[tuple[int, int, int, int]](), list[np.ndarray]()
    for answer in answers:
        batch = batches.of([answer], num_anchors, generator, decay=0.0).to(str(head.device))
        losses.append(float(distillation_loss(drafter, batch, head)))
        logits = torch.nn.functional.linear(decoded_rows(drafter, batch)[0], head).cpu().numpy()
        fields = (batch.parent_ids, batch.next_ids, batch.copied_ids, batch.match_lengths)
        arrays = [part[0].cpu().numpy() for part in fields]
        kept = batch.is_kept[0].cpu().numpy()
        for rows, parents, tokens, following, length, exists in zip(
            logits, *arrays, kept, strict=True
        ):
            copied = Copied(int(length), following)
            laws = BlockConditionals(rows, markov, num_candidates, copied=copied)
            best = np.array([laws.at(k, p)[0][0] for k, p in enumerate(parents)])
            hits = (best == tokens) & exists
            right.append(hits)
            lengths.append(_lengths(laws, rows, markov, num_candidates, parents, tokens, hits))
    chain, tree8, tree16, marginal16 = (1.0 + np.mean(lengths, axis=0)).tolist()
    accuracy = tuple(np.mean(right, axis=0).tolist())
    return Acceptance(float(np.mean(losses)), chain, tree8, tree16, marginal16, accuracy)


def _lengths(
    laws: BlockConditionals,
    rows: np.ndarray,
    markov: MarkovHead,
    num_candidates: int,
    parents: np.ndarray,
    tokens: np.ndarray,
    hits: np.ndarray,
) -> tuple[int, int, int, int]:
    """Accepted nodes of the chain, the trees of 8 and 16, and the tree of 16 on marginals."""
    chain = int(np.cumprod(hits).sum())
    order = grown_paths(laws, int(parents[0]), 16)
    off = MarkovHead(markov.codes, markov.out, markov.draft_ids, is_on=False)
    flat = grown_paths(BlockConditionals(rows, off, num_candidates), int(parents[0]), 16)
    tree8, tree16, flat16 = (_accepted(paths, tokens) for paths in (order[:8], order, flat))
    return chain, tree8, tree16, flat16


def grown_paths(laws: BlockConditionals, anchor_id: int, num_nodes: int) -> list[tuple[int, ...]]:
    """The most probable paths, most probable first; parents stand before their children."""
    frontier: list[tuple[float, tuple[int, ...]]] = [(0.0, ())]
    paths: list[tuple[int, ...]] = []
    while frontier and len(paths) <= num_nodes:
        cost, path = heapq.heappop(frontier)
        paths.append(path)
        if len(path) < laws.num_rows:
            ids, log_probs, _ = laws.at(len(path), path[-1] if path else anchor_id)
            for token, log_prob in zip(ids[:_BRANCH], log_probs[:_BRANCH], strict=True):
                heapq.heappush(frontier, (cost - float(log_prob), (*path, int(token))))
    return paths[1:]


def _accepted(paths: Sequence[tuple[int, ...]], tokens: np.ndarray) -> int:
    truth = tuple(tokens.tolist())
    return max((len(path) for path in paths if path == truth[: len(path)]), default=0)


def _batches(drafter: BlockDrafter) -> Batches:
    config = drafter.config
    return Batches(drafter.draft_ids.cpu().numpy(), config.target_vocab_size, config.block_size)
