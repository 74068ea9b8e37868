"""Step times of a verifier: R sequences of one context length, B tokens in trees."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

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
_MOST_NODES = 48  # of one sequence


@dataclass(frozen=True)
class StepGrid:
    """The cells that are measured."""

    sequences: tuple[int, ...]
    tokens: tuple[int, ...]

    @staticmethod
    def up_to(max_sequences: int) -> "StepGrid":
        """Powers of two, and trees as large as any policy makes them."""
        sequences = tuple(2**power for power in range(max_sequences.bit_length()))
        return StepGrid(sequences, _NUM_TOKENS)

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

    @property
    def spread(self) -> float:
        """Median over the cells of their interquartile range as a share of their median."""
        quartiles = [np.percentile(own, (25.0, 50.0, 75.0)) for own in self.samples.values()]
        return float(np.median([(high - low) / middle for low, middle, high in quartiles]))


def measure_steps(
    verifier: Verifier,
    vocab_size: int,
    grid: StepGrid,
    seconds: float,
    on_progress: Callable[[float], None] = lambda share: None,
) -> StepTimes:
    """Measure all cells in turns, in changing order, for so long; three times at least.

    Interleaving lets a drift of the machine meet all cells alike; the first pass is a warm-up.
    """
    order = np.random.default_rng(0)
    times = StepTimes(grid)
    driver = _Driver(verifier, vocab_size, max(grid.sequences))
    start, cells, passes = time.perf_counter(), grid.cells, 0
    while passes < 4 or time.perf_counter() - start < seconds:
        for done, place in enumerate(order.permutation(len(cells)).tolist()):
            cell_ms = driver.step_ms(*cells[place])
            if passes > 0:
                times.samples.setdefault(cells[place], []).append(cell_ms)
            by_time = (time.perf_counter() - start) / seconds
            on_progress(min(by_time, (passes + done / len(cells)) / 4, 1.0))
        passes += 1
    driver.finish()
    return times


class _Driver:
    """Sequences over one verifier, whose trees are never meant to be accepted."""

    def __init__(self, verifier: Verifier, vocab_size: int, num_sequences: int) -> None:
        self._verifier = verifier
        self._vocab_size = vocab_size
        self._rng = np.random.default_rng(1)
        self._prompt = self._random_tokens(CONTEXT_LENGTH).tolist()
        self._tokens: dict[int, list[int]] = {}
        for sequence_id in range(num_sequences):
            self._start(sequence_id)

    def step_ms(self, num_sequences: int, num_tokens: int) -> float:
        """Time of one step over the first sequences."""
        for sequence_id in range(num_sequences):
            if len(self._tokens[sequence_id]) > CONTEXT_LENGTH + _MOST_GROWTH:
                self._start(sequence_id)
        sizes = np.full(num_sequences, num_tokens // num_sequences - 1)
        sizes[: num_tokens % num_sequences] += 1
        request = self._request(sizes.tolist())
        start = time.perf_counter()
        reply = self._verifier.verify(request)
        elapsed_ms = 1e3 * (time.perf_counter() - start)
        self._follow(range(num_sequences), reply)
        return elapsed_ms

    def finish(self) -> None:
        """Leave nothing behind in the verifier."""
        self._verifier.verify(VerifyRequest(finished_ids=np.array(list(self._tokens), np.int64)))

    def _start(self, sequence_id: int) -> None:
        """Take up the prompt, whose blocks all sequences share where prefixes are reused."""
        self._tokens[sequence_id] = list(self._prompt)
        new = StartedSequence(sequence_id, np.array(self._prompt, np.int32), 0, _GREEDY)
        changes = pack_started([new])
        while True:
            anchor = DraftTree.of_anchor(self._tokens[sequence_id][-1])
            reply = self._verifier.verify(_request([sequence_id], [anchor], **changes))
            self._follow([sequence_id], reply)
            if reply.status[0] == Status.DECODED:
                return
            changes = {}

    def _follow(self, sequence_ids: Sequence[int], reply: VerifyReply) -> None:
        emitted = split_ragged(reply.emitted_token_ids, reply.num_emitted)
        for sequence_id, tokens in zip(sequence_ids, emitted, strict=True):
            self._tokens[sequence_id] += tokens.tolist()

    def _request(self, sizes: Sequence[int]) -> VerifyRequest:
        """Bushy trees of random tokens below each anchor."""
        trees = [
            DraftTree(
                np.concatenate(([self._tokens[sequence_id][-1]], self._random_tokens(size))).astype(
                    np.int32
                ),
                np.concatenate(([-1], np.arange(size) // 2)).astype(np.int32),
            )
            for sequence_id, size in enumerate(sizes)
        ]
        return _request(range(len(sizes)), trees)

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
