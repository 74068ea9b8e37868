"""The steps whose time the benchmark `step` takes, and a decoder that takes them."""

import time
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from canopy.config import TargetConfig
from canopy.models.decoder import Decoder
from canopy.models.step_batch import Segment, assemble_step
from canopy.verifier.tensor_parallel.decoder import load_target, num_threads

BLOCK_SIZE = 16
CONTEXT_LENGTH = 256
_BRANCHES = 2


@dataclass(frozen=True)
class Case:
    """`num_sequences` trees of `num_rows` nodes, the anchor included, on a context each."""

    num_sequences: int
    num_rows: int


@dataclass(frozen=True)
class Layout:
    """Each sequence has blocks of its own: the context's, then those of its largest tree."""

    num_sequences: int
    blocks_of_each: int

    @staticmethod
    def of(cases: Sequence[Case]) -> "Layout":
        """Room for any one of the cases."""
        max_rows = max(case.num_rows for case in cases)
        blocks_of_each = -(-(CONTEXT_LENGTH + max_rows) // BLOCK_SIZE)
        return Layout(max(case.num_sequences for case in cases), blocks_of_each)

    @property
    def num_blocks(self) -> int:
        return self.num_sequences * self.blocks_of_each

    def block_table(self, sequence: int) -> list[int]:
        first = sequence * self.blocks_of_each
        return list(range(first, first + self.blocks_of_each))

    def context_slots(self, sequence: int) -> torch.Tensor:
        """int64 [context length]"""
        return sequence * self.blocks_of_each * BLOCK_SIZE + torch.arange(CONTEXT_LENGTH)


def step_of(case: Case, layout: Layout, vocab_size: int) -> list[Segment]:
    """All rows' logits are wanted; every node has two children as far as nodes go."""
    random = np.random.default_rng(0)
    rows = np.arange(case.num_rows)
    parents = np.where(rows == 0, -1, (rows - 1) // _BRANCHES)
    return [
        Segment(
            context_length=CONTEXT_LENGTH,
            block_table=layout.block_table(sequence),
            token_ids=random.integers(vocab_size, size=len(rows)),
            parents=parents,
            logit_rows=rows,
        )
        for sequence in range(case.num_sequences)
    ]


def context_of(layout: Layout, vocab_size: int) -> Segment:
    """The context of sequence 0, to be computed once."""
    return Segment(
        context_length=0,
        block_table=layout.block_table(0),
        token_ids=np.random.default_rng(1).integers(vocab_size, size=CONTEXT_LENGTH),
        parents=np.arange(CONTEXT_LENGTH) - 1,
        logit_rows=np.array([CONTEXT_LENGTH - 1]),
    )


class StepTimer:
    """Times a decoder; every sequence has the same context, but not shared."""

    def __init__(self, decoder: Decoder, device: str, cases: Sequence[Case]) -> None:
        layout = Layout.of(cases)
        self._decoder = decoder
        self.cache = decoder.new_cache(layout.num_blocks, BLOCK_SIZE)
        vocab_size = decoder.config.vocab_size
        self._steps = {
            case: assemble_step(step_of(case, layout, vocab_size), BLOCK_SIZE) for case in cases
        }
        self._context = assemble_step([context_of(layout, vocab_size)], BLOCK_SIZE)
        self.prompt_seconds()
        source = layout.context_slots(0).to(device)
        for sequence in range(1, layout.num_sequences):
            self.cache.move(source, layout.context_slots(sequence).to(device))

    @staticmethod
    def of_target(target: TargetConfig, cases: Sequence[Case]) -> "StepTimer":
        """Over a decoder as the verifier loads it."""
        torch.set_num_threads(num_threads(target))
        return StepTimer(load_target(target), target.device, cases)

    def prompt_seconds(self) -> float:
        """The context of the first sequence computed in one step, as it was before."""
        start = time.perf_counter()
        self._decoder.forward(self._context, self.cache).cpu()
        return time.perf_counter() - start

    def seconds(self, case: Case) -> float:
        """One forward, the logits on the host."""
        start = time.perf_counter()
        self._decoder.forward(self._steps[case], self.cache).cpu()
        return time.perf_counter() - start
