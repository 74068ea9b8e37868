"""Lookup's candidates and a block drafter's, weighed together.

The survival model is fitted as for lookup alone (lookup.survival), with the drafter's
candidates among the features: on answers that the n-gram store has not seen. The drafter has seen
them in its training, unless they are among its own held-out ones.
"""

from collections.abc import Callable

import numpy as np
import torch

from canopy.drafter.block.distributions import BlockDistributions, Copied
from canopy.drafter.block.markov_head import markov_head
from canopy.drafter.block.source import drafted_by
from canopy.models.block_drafter.int8_runner import Int8BlockRunner
from canopy.models.block_drafter.network import BlockDrafter, BlockDrafterConfig
from canopy.models.block_drafter.runner import BlockInputs, BlockRows, BlockRunner
from canopy_kernels.ngram.candidates import Drafted
from canopy_kernels.ngram.prompt_lookup import prompt_lookup
from canopy_training.corpus.corpus import Answer
from canopy_training.lookup.survival import Drafting, anchor_positions

_PASS = 32  # anchors


def drafting_with(drafter: BlockDrafter, num_candidates: int) -> Drafting:
    """A drafter's candidates at every anchor of an answer, as the draft stage would have them."""
    runner = Int8BlockRunner(drafter, torch.get_num_threads())
    head = markov_head(drafter)
    embedding = drafter.embedding

    def drafting(answer: Answer) -> Callable[[int, list[int]], Drafted]:
        tokens = answer.token_ids.astype(np.int64)
        positions = [
            position for position, _ in anchor_positions(len(answer.prompt_ids), len(tokens))
        ]
        rows = _rows(runner, embedding, answer, np.array(positions) - 1, drafter.config)
        distributions = {
            position: BlockDistributions(
                BlockRows(logits, codes),
                head,
                int(tokens[position - 1]),
                num_candidates,
                copied=Copied(*prompt_lookup(tokens[:position], drafter.config.block_size)),
            )
            for position, logits, codes in zip(positions, *rows, strict=True)
        }

        def drafted(position: int, path: list[int]) -> Drafted:
            return drafted_by(distributions[position])(path)

        return drafted

    return drafting


def _rows(
    runner: BlockRunner,
    embedding: torch.Tensor,
    answer: Answer,
    anchors: np.ndarray,
    config: BlockDrafterConfig,
) -> BlockRows:
    """Of anchors at int64 [n] positions, 1 or more."""
    features = np.array(answer.hidden_states)
    vectors, key_values = runner.encode(
        features.reshape(len(features), -1), np.arange(len(features))
    )
    tokens = answer.token_ids.astype(np.int64)
    copies = {a: prompt_lookup(tokens[: a + 1], config.block_size) for a in anchors.tolist()}
    parts = []
    for some in np.split(anchors, range(_PASS, len(anchors), _PASS)):
        lengths = np.minimum(some, config.window)
        padded = np.zeros((len(some), int(lengths.max()), *key_values.shape[1:]), np.float32)
        for row, anchor, length in zip(padded, some, lengths, strict=True):
            row[:length] = key_values[anchor - length : anchor]
        rows = runner.propose(
            BlockInputs(
                embedding[tokens[some]].numpy(),
                vectors[some - 1],
                some,
                padded,
                lengths,
                embedding[np.stack([copies[a][1] for a in some.tolist()])].numpy(),
                np.array([copies[a][0] for a in some.tolist()], np.int64),
            )
        )
        parts.append([part.copy() for part in rows])
    return BlockRows(*map(np.concatenate, zip(*parts, strict=True)))
