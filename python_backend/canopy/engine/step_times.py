"""Step times of a verifier: R sequences of one context length, B tokens in trees."""

import itertools
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np

from canopy.config import Deployment
from canopy.costs.cost_model import CostModel, fit
from canopy.protocol.messages import Status, VerifyReply, VerifyRequest
from canopy.protocol.proposals import pack_rows
from canopy.protocol.sequence_updates import StartedSequence, pack_started
from canopy.protocol.stages import Verifier
from canopy.sampling import SamplingParams
from canopy.tree import DraftTree, Forest, ProposalRow
from canopy.tree.forest import split_ragged

CONTEXT_LENGTH = 256
_MOST_GROWTH = 64  # tokens, after which a sequence is started afresh
_GREEDY = SamplingParams(temperature=0.0, max_tokens=1 << 20)
# A row beyond a full tile of 16 may cost a whole tile: between 16 and 24 there is no line.
_NUM_TOKENS = (1, 2, 3, 4, 6, 8, 12, 16, 17, 20, 24, 32, 33, 40, 48, 64, 96, 128, 192)
_COARSE_TOKENS = (1, 4, 8, 16, 17, 32, 64, 192)
_MOST_NODES = 48  # of one sequence
_MOST_SEQUENCES = 32
_PERCENTILE = 25.0
_ENOUGH = 3  # samples of a cell, of which the first warms up


@dataclass(frozen=True)
class StepGrid:
    """The cells that are measured."""

    sequences: tuple[int, ...]
    tokens: tuple[int, ...]
    is_coarse: bool = False

    @staticmethod
    def up_to(max_sequences: int) -> "StepGrid":
        """Powers of two, 32 at most, and trees as large as any policy makes them."""
        largest = min(max_sequences, _MOST_SEQUENCES)
        sequences = tuple(2**power for power in range(largest.bit_length()))
        return StepGrid(sequences, _NUM_TOKENS)

    @property
    def coarse(self) -> "StepGrid":
        """A few of the cells, from the least to the most that a step can have."""
        last = len(self.sequences) - 1
        places = sorted({0, (last + 1) // 2, last})
        tokens = tuple(num for num in self.tokens if num in _COARSE_TOKENS)
        return StepGrid(tuple(self.sequences[place] for place in places), tokens, is_coarse=True)

    @property
    def cells(self) -> list[tuple[int, int]]:
        """(sequences, tokens) that a step can have."""
        return [
            (num, tokens)
            for num in self.sequences
            for tokens in self.tokens
            if num <= tokens <= num * (1 + _MOST_NODES)
        ]


@dataclass
class StepTimes:
    """Measured milliseconds of every cell."""

    grid: StepGrid
    samples: dict[tuple[int, int], list[float]] = field(default_factory=dict)

    def table(self, percentile: float) -> list[list[float]]:
        """[sequences][tokens]; NaN where nothing was measured."""
        return [
            [
                float(np.percentile(self.samples.get((num, tokens), [np.nan]), percentile))
                for tokens in self.grid.tokens
            ]
            for num in self.grid.sequences
        ]

    def cost_model(self) -> CostModel:
        """The fit of the quicker samples: what others do on the machine only ever adds."""
        return fit(self.grid.sequences, self.grid.tokens, self.table(_PERCENTILE))

    @property
    def spread(self) -> float:
        """Median over the cells of their interquartile range as a share of their median."""
        quartiles = [np.percentile(own, (25.0, 50.0, 75.0)) for own in self.samples.values()]
        return float(np.median([(high - low) / middle for low, middle, high in quartiles]))


class StepSampler:
    """Measures one cell at a time: the coarse ones first, then all of them in changing order.

    Interleaving lets a drift of the machine meet all cells alike. It can stop after any cell; what
    was measured so far is worth `times`.
    """

    def __init__(self, grid: StepGrid) -> None:
        self._grid = grid
        self._visits = _visits(grid)
        self._next = next(self._visits)
        self._samples: dict[tuple[int, int], list[float]] = {}

    def measure(self, driver: "StepDriver") -> None:
        """One call of the verifier: for the next cell, or for a sequence that it needs."""
        if driver.prepare(self._next[0]):
            self._samples.setdefault(self._next, []).append(driver.step_ms(*self._next))
            self._next = next(self._visits)

    @staticmethod
    def of(deployment: Deployment) -> "StepSampler":
        """Of the steps that a deployment can have, as far as its cache holds the sequences."""
        length = CONTEXT_LENGTH + _MOST_GROWTH + _MOST_NODES + deployment.cache.block_size
        fitting = max(deployment.cache.num_tokens // length, 1)
        return StepSampler(StepGrid.up_to(min(deployment.limits.max_running, fitting)))

    @property
    def is_usable(self) -> bool:
        """Every coarse cell was measured."""
        return set(self._grid.coarse.cells) <= self._samples.keys()

    @property
    def share(self) -> float:
        """Of what makes the measurement fine, 1 in the end."""
        done = sum(min(len(own), _ENOUGH) for own in self._samples.values())
        return done / (_ENOUGH * len(self._grid.cells))

    @property
    def times(self) -> "StepTimes":
        """On the whole grid once it is fine, before on the coarse one; first samples, which warm
        up, count only where there is no other."""
        grid = self._grid if self.share >= 1.0 else self._grid.coarse
        samples = {cell: self._samples[cell] for cell in grid.cells if cell in self._samples}
        return StepTimes(grid, {cell: own[1:] or own for cell, own in samples.items()})


def _visits(grid: StepGrid) -> Iterator[tuple[int, int]]:
    order = np.random.default_rng(0)
    coarse, cells = grid.coarse.cells, grid.cells
    for own in itertools.chain([coarse] * _ENOUGH, itertools.repeat(cells)):
        yield from (own[place] for place in order.permutation(len(own)).tolist())


class StepDriver:
    """Sequences over one verifier, whose trees are never meant to be accepted.

    first_id: sequences are numbered from here.
    """

    def __init__(self, verifier: Verifier, vocab_size: int, first_id: int = 0) -> None:
        self._verifier = verifier
        self._vocab_size = vocab_size
        self._first_id = first_id
        self._rng = np.random.default_rng(1)
        self._prompt = self._random_tokens(CONTEXT_LENGTH).tolist()
        self._tokens: dict[int, list[int]] = {}
        self._is_decoding: set[int] = set()

    def prepare(self, num_sequences: int) -> bool:
        """Whether the first sequences can take a step; if not, one of them gets nearer to it.

        All share the blocks of their prompt where prefixes are reused.
        """
        for sequence_id in self._ids(num_sequences):
            grown = len(self._tokens.get(sequence_id, ())) > CONTEXT_LENGTH + _MOST_GROWTH
            if sequence_id not in self._is_decoding or grown:
                self._start(sequence_id, grown)
                return False
        return True

    def step_ms(self, num_sequences: int, num_tokens: int) -> float:
        """Time of one step over the first sequences."""
        sizes = np.full(num_sequences, num_tokens // num_sequences - 1)
        sizes[: num_tokens % num_sequences] += 1
        request = self._request(sizes.tolist())
        start = time.perf_counter()
        reply = self._verifier.verify(request)
        elapsed_ms = 1e3 * (time.perf_counter() - start)
        self._follow(self._ids(num_sequences), reply)
        return elapsed_ms

    def finish(self) -> None:
        """Leave nothing behind in the verifier."""
        finished = np.array(list(self._tokens), np.int64)
        self._tokens, self._is_decoding = {}, set()
        if len(finished):
            self._verifier.verify(VerifyRequest(finished_ids=finished))

    def _ids(self, num_sequences: int) -> range:
        return range(self._first_id, self._first_id + num_sequences)

    def _start(self, sequence_id: int, grown: bool) -> None:
        """Compute the prompt, or a piece of it."""
        changes = {}
        if sequence_id not in self._tokens or grown:
            self._tokens[sequence_id] = list(self._prompt)
            self._is_decoding.discard(sequence_id)
            new = StartedSequence(sequence_id, np.array(self._prompt, np.int32), 0, _GREEDY)
            changes = pack_started([new])
        anchor = DraftTree.of_anchor(self._tokens[sequence_id][-1])
        reply = self._verifier.verify(_request([sequence_id], [anchor], **changes))
        self._follow([sequence_id], reply)
        if reply.status[0] == Status.DECODED:
            self._is_decoding.add(sequence_id)

    def _follow(self, sequence_ids: Sequence[int], reply: VerifyReply) -> None:
        emitted = split_ragged(reply.emitted_token_ids, reply.num_emitted)
        for sequence_id, tokens in zip(sequence_ids, emitted, strict=True):
            self._tokens[sequence_id] += tokens.tolist()

    def _request(self, sizes: Sequence[int]) -> VerifyRequest:
        """Bushy trees of random tokens below each anchor."""
        ids = self._ids(len(sizes))
        trees = [
            DraftTree(
                np.concatenate(([self._tokens[sequence_id][-1]], self._random_tokens(size))).astype(
                    np.int32
                ),
                np.concatenate(([-1], np.arange(size) // 2)).astype(np.int32),
            )
            for sequence_id, size in zip(ids, sizes, strict=True)
        ]
        return _request(ids, trees)

    def _random_tokens(self, num: int) -> np.ndarray:
        return self._rng.integers(0, self._vocab_size, num).astype(np.int32)


def _request(
    sequence_ids: Sequence[int], trees: Sequence[DraftTree], **changes: np.ndarray
) -> VerifyRequest:
    forest = Forest.pack(trees)
    return VerifyRequest(
        **changes,
        sequence_ids=np.array(sequence_ids, np.int64),
        num_nodes=forest.num_nodes,
        token_ids=forest.token_ids,
        parents=forest.parents,
        **pack_rows([ProposalRow.empty()] * len(forest.token_ids)),
    )
