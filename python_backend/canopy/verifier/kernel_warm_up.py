"""Every variant of a kernel that serving can reach, compiled before the first request.

Triton compiles a kernel for each combination of its constants, when it first meets it, which takes
seconds. The list here is short because the kernels round what varies up to few sizes: the tilings
of attention by the number of sequences, the moves of a path, trees and proposal rows by size.
Steps and trees of padding are run; nothing is written to the cache.
"""

import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch

from canopy.acceptance.acceptor import Acceptor, Candidate
from canopy.config import Deployment
from canopy.models.decoder import Cache, Decoder
from canopy.models.step_batch import StepBatch
from canopy.sampling import MAX_NODE_BUDGET, Acceptance, SamplingParams
from canopy.tree import DraftTree, ProposalRow
from canopy_kernels.sampling.trees import NODE_SIZES, ROW_SIZES

logger = logging.getLogger(__name__)

_PACKED_ROWS = (0, 16, 64)  # behind each begins another tiling of attention
_TREE_MODES = (Acceptance.REJECTION, Acceptance.TRAVERSAL)


@dataclass(frozen=True)
class KernelLimits:
    """Of what a step may bring."""

    max_sequences: int
    max_nodes: int  # of a tree, the anchor included
    row_size: int  # most entries of a proposal row

    @staticmethod
    def of(deployment: Deployment) -> "KernelLimits":
        """Requests choose smaller or larger budgets, but no proposal is larger than a drafter's."""
        drafter = deployment.drafter
        max_nodes = 1 + min(MAX_NODE_BUDGET, drafter.max_nodes)
        return KernelLimits(deployment.limits.max_running, max_nodes, drafter.row_size)


@torch.inference_mode()
def compile_kernels(
    decoder: Decoder, cache: Cache, acceptor: Acceptor, limits: KernelLimits
) -> None:
    """Run one of each kind of step, move and tree, and say in the log how far it is."""
    config = decoder.config
    group = config.num_heads // config.num_kv_heads
    tasks: list[Callable[[], object]] = [
        partial(decoder.forward, batch, cache)
        for batch in _steps(group, limits.max_sequences, cache.block_size)
    ]
    device = str(cache.device)
    moves = [torch.full((1, 2**power), -1, device=device) for power in range(_bits(limits))]
    tasks += [partial(cache.move, slots, slots) for slots in moves]
    for candidate in _candidates(limits):
        tasks.append(partial(_decide, acceptor, candidate, config.vocab_size, device))
    for done, task in enumerate(tasks):
        if done % 8 == 0:
            logger.info("compiling kernels: %d of %d", done, len(tasks))
        task()
    logger.info("compiled kernels for %d kinds of work", len(tasks))


def _bits(limits: KernelLimits) -> int:
    """How many powers of two stand up to the one that holds the longest path."""
    return (limits.max_nodes - 1).bit_length() + 1


def _steps(group: int, max_sequences: int, block_size: int) -> Iterator[StepBatch]:
    """Every tiling with every padded number of sequences. group: query heads of a KV head."""
    for power in range(max_sequences.bit_length()):
        for num_rows in sorted({packed // group + 1 for packed in _PACKED_ROWS}):
            yield _padding_step(2**power, num_rows, block_size)


def _padding_step(num_sequences: int, num_rows: int, block_size: int) -> StepBatch:
    """Sequences of so many rows each, which are stored nowhere."""
    size = num_sequences * num_rows
    within = np.arange(size) % num_rows
    parents = np.where(within > 0, np.arange(size) - 1, -1)
    num_blocks = -(-num_rows // block_size)
    return StepBatch(
        token_ids=torch.zeros(size, dtype=torch.int64),
        positions=torch.from_numpy(within),
        slots=torch.full((size,), -1),
        parent_rows=torch.from_numpy(parents.astype(np.int32)),
        row_starts=torch.arange(0, size + 1, num_rows, dtype=torch.int32),
        context_lengths=torch.zeros(num_sequences, dtype=torch.int32),
        block_tables=torch.zeros((num_sequences, num_blocks), dtype=torch.int32),
        logit_rows=torch.zeros(1, dtype=torch.int64),
    )


def _candidates(limits: KernelLimits) -> Iterator[Candidate]:
    """A chain of every padded size; in the ratio modes with a row of every padded size."""
    longest_row = max(limits.row_size, limits.max_nodes - 1)  # or the children of a node
    for num_nodes in _sizes_up_to(limits.max_nodes, NODE_SIZES):
        yield _candidate(num_nodes, 0, Acceptance.COUPLED)
        for row_size in _sizes_up_to(longest_row, ROW_SIZES):
            for mode in _TREE_MODES:
                yield _candidate(num_nodes, row_size, mode)


def _sizes_up_to(most: int, sizes: tuple[int, ...]) -> list[int]:
    """One size for each of `sizes` that some size up to `most` is rounded to."""
    smaller = [size for size in sizes if size < most]
    return [*smaller, most]


def _candidate(num_nodes: int, row_size: int, mode: Acceptance) -> Candidate:
    token_ids = np.zeros(num_nodes, np.int32)
    tree = DraftTree(token_ids, np.arange(-1, num_nodes - 1, dtype=np.int32))
    row = ProposalRow(
        np.arange(row_size, dtype=np.int32),
        np.full(row_size, -np.log(max(row_size, 1)), np.float32),
    )
    rows = [row, *[ProposalRow.empty()] * (num_nodes - 1)]
    return Candidate(tree, rows, SamplingParams(acceptance=mode), 1)


def _decide(acceptor: Acceptor, candidate: Candidate, vocab_size: int, device: str) -> None:
    logits = torch.zeros((len(candidate.rows), vocab_size), device=device)
    acceptor.accept([candidate], logits)
