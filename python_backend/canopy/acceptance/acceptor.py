"""Acceptance of all trees of a step at once, where their logits are.

HostAcceptor                      tree by tree, by the rules of canopy.acceptance.rules
device_acceptor.DeviceAcceptor    all trees together, by the kernels: the same tokens
"""

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Protocol

import numpy as np
import torch

from canopy.acceptance.result import VerificationResult
from canopy.acceptance.rules import accept
from canopy.sampling import SamplingParams
from canopy.tree import DraftTree, ProposalRow

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Candidate:
    """A tree of the step, and what decides about it; the fields are those of `accept`."""

    tree: DraftTree
    rows: Sequence[ProposalRow]  # one per node, the anchor included
    params: SamplingParams
    num_tokens: int


class Acceptor(Protocol):
    """Decides all trees of a step."""

    def accept(
        self, candidates: Sequence[Candidate], logits: torch.Tensor
    ) -> list[VerificationResult | None]:
        """The verdicts in order; None where no token can be chosen, as of logits that are NaN.

        logits: float32 [N, V], a row for every node of every tree; they are used up.
        """
        ...


class HostAcceptor:
    """On the CPU. Of a tree only the rows that its rule reads are looked at."""

    def accept(
        self, candidates: Sequence[Candidate], logits: torch.Tensor
    ) -> list[VerificationResult | None]:
        """As `Acceptor.accept`."""
        table = logits.cpu().numpy()
        ends = list(accumulate(len(candidate.rows) for candidate in candidates))
        return [
            _accept(candidate, table[end - len(candidate.rows) : end])
            for candidate, end in zip(candidates, ends, strict=True)
        ]


def _accept(candidate: Candidate, logits: np.ndarray) -> VerificationResult | None:
    c = candidate
    try:
        return accept(c.tree, list(c.rows), logits, c.params, c.num_tokens)
    except Exception as error:  # whatever the data of one sequence raises ends that one
        logger.error("a tree cannot be decided: %r", error)
        return None
