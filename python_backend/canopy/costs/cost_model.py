"""Step time: what verifying B tokens of R sequences takes on this machine.

    T(B, R)   measured on a grid by `canopy profile`; never falls in B or in R

Between grid points the time is interpolated along B, or it stays on the next point's stair where
the verifier pads its batches to the grid (CUDA graphs). Beyond the grid it goes on at the slope
of the last interval, averaged over the rows. What the grid cannot know - the length of the
contexts, other load on the machine, the engine's own work - comes from a correction that follows
the measured steps.
"""

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from canopy.costs.step_correction import StepCorrection

_SMOOTHING = 0.15  # weight of the last step in the means below
_FIT_STEPS = 40
_SURPRISE = 2.0  # a step moves a mean by this factor at most: stalls are not the trend


@dataclass(frozen=True)
class CostModel:
    """A grid of step times in milliseconds; see `fit` for one from measurements."""

    sequences: tuple[int, ...]  # [m] ascending, of at least 1
    tokens: tuple[int, ...]  # [n] ascending, of at least 1
    step_ms: tuple[tuple[float, ...], ...]  # [m][n] positive, rising along both
    is_step_function: bool = False

    def __post_init__(self) -> None:
        table = np.array(self.step_ms, np.float64)
        if table.shape != (len(self.sequences), len(self.tokens)) or table.size == 0:
            raise ValueError("a cost model has one step time for each grid point")
        for axis in (self.sequences, self.tokens):
            if axis[0] < 1 or any(a >= b for a, b in itertools.pairwise(axis)):
                raise ValueError("the grid of a cost model ascends from at least 1")
        if not (np.isfinite(table).all() and table.min() > 0.0):
            raise ValueError("step times are positive and finite")
        if any((np.diff(table, axis=axis) < 0.0).any() for axis in (0, 1)):
            raise ValueError("step times do not fall with more tokens or more sequences")

    @staticmethod
    def from_json(table: Any) -> "CostModel":
        """The inverse of `dataclasses.asdict`. Raises ValueError for anything malformed."""
        try:
            return CostModel(
                tuple(map(int, table["sequences"])),
                tuple(map(int, table["tokens"])),
                tuple(tuple(map(float, row)) for row in table["step_ms"]),
                bool(table["is_step_function"]),
            )
        except (TypeError, KeyError, IndexError) as error:
            raise ValueError(f"not a cost model: {error!r}") from error

    def predict_ms(self, num_tokens: np.ndarray, num_sequences: int) -> np.ndarray:
        """T of each of `num_tokens` (int [n], anchors included); float64 [n]."""
        curve, last = self._curve(num_sequences), self.tokens[-1]
        times = curve[np.minimum(num_tokens, last)]
        return times + self._slope_ms * np.maximum(num_tokens - last, 0)

    def predict_one_ms(self, num_tokens: int, num_sequences: int) -> float:
        """T of one step."""
        curve, last = self._curve(num_sequences), self.tokens[-1]
        return float(curve[min(num_tokens, last)]) + self._slope_ms * max(num_tokens - last, 0)

    def _curve(self, num_sequences: int) -> np.ndarray:
        """T of 0, 1, ... tokens to the end of the grid; kept, as a step asks for it often."""
        if num_sequences not in self._curves:
            place = float(np.interp(num_sequences, self.sequences, range(len(self.sequences))))
            low, share = int(place), place % 1.0
            curve = self._row_curve(low)
            if share:
                curve = (1.0 - share) * curve + share * self._row_curve(low + 1)
            self._curves[num_sequences] = curve
        return self._curves[num_sequences]

    def _row_curve(self, row: int) -> np.ndarray:
        tokens = np.arange(self.tokens[-1] + 1)
        if self.is_step_function:
            return self._table[row][np.searchsorted(self.tokens, tokens)]
        return np.interp(tokens, self.tokens, self._table[row])

    @cached_property
    def _curves(self) -> dict[int, np.ndarray]:
        return {}

    @cached_property
    def _table(self) -> np.ndarray:
        return np.array(self.step_ms)

    @cached_property
    def _slope_ms(self) -> float:
        """Of a token beyond the grid: one slope for all rows, so that they keep their order."""
        last = self._table[:, -2:].mean(axis=0)
        if len(last) == 1:
            return float(last[0]) / self.tokens[0]
        return float(last[1] - last[0]) / (self.tokens[-1] - self.tokens[-2])


# Where nothing was measured: small int8 models on a few cores, which keeps trees small.
DEFAULT_COST_MODEL = CostModel((1,), (1, 257), ((12.0, 268.0),))


def fit(
    sequences: Sequence[int],
    tokens: Sequence[int],
    measured_ms: Sequence[Sequence[float]],
    is_step_function: bool = False,
) -> CostModel:
    """A grid close to measurements that rises along tokens and along sequences.

    measured_ms: [len(sequences)][len(tokens)]; NaN where there is none, as for fewer tokens than
    sequences, which takes the value of the next measured point of its row. Raises ValueError for
    a row without any measurement.
    """
    table = np.array([_filled(np.array(row, np.float64)) for row in measured_ms])
    # The nearest rising rows and the nearest rising columns in step: each step averages what the
    # other left falling, so noise is spread and does not pile up. What is left is rounded away.
    for _ in range(_FIT_STEPS):
        table = np.apply_along_axis(_isotonic, 1, table)
        table = np.apply_along_axis(_isotonic, 0, table)
    table = np.maximum.accumulate(np.maximum.accumulate(table, axis=0), axis=1)
    rows = tuple(tuple(row) for row in table.tolist())
    return CostModel(tuple(sequences), tuple(tokens), rows, is_step_function)


def _filled(row: np.ndarray) -> np.ndarray:
    known = np.flatnonzero(np.isfinite(row))
    if len(known) == 0:
        raise ValueError("a number of sequences was never measured")
    return row[known[np.minimum(np.searchsorted(known, np.arange(len(row))), len(known) - 1)]]


def _isotonic(values: np.ndarray) -> np.ndarray:
    """Pool adjacent violators (Ayer et al., 1955): the nearest sequence that never falls."""
    pools: list[tuple[float, int]] = []  # mean, size
    for value in values.tolist():
        mean, size = value, 1
        while pools and pools[-1][0] > mean:
            other, count = pools.pop()
            mean, size = (mean * size + other * count) / (size + count), size + count
        pools.append((mean, size))
    return np.concatenate([np.full(size, mean) for mean, size in pools])


@dataclass(frozen=True)
class StepTimesMs:
    """What the last step took; zero where it tells nothing."""

    verify_ms: float
    draft_ms: float
    overhead_ms: float  # building, commit, sending, the engine's own work
    predicted_ms: float  # of verify, by the grid alone
    num_sequences: int  # at least 1


@dataclass(frozen=True)
class CostCorrection:
    """Means over the last steps, each step bounded in what it can change."""

    step: StepCorrection = StepCorrection()
    draft_ms: float = 0.0
    overhead_ms: float = 0.0

    @property
    def non_verify_ms(self) -> float:
        """What a step with a draft takes beside its verify step."""
        return self.draft_ms + self.overhead_ms

    def after(self, step: StepTimesMs) -> "CostCorrection":
        """The correction after a measured step; non-finite inputs are ignored."""
        return replace(
            self,
            step=self.step.after(step.verify_ms, step.predicted_ms, step.num_sequences),
            draft_ms=_mean_ms(self.draft_ms, step.draft_ms),
            overhead_ms=_mean_ms(self.overhead_ms, step.overhead_ms),
        )


def _moved(mean: float, value: float) -> float:
    limit = math.log(_SURPRISE)
    return mean + _SMOOTHING * max(-limit, min(limit, value - mean))


def _mean_ms(mean: float, value: float) -> float:
    """The first value stands for itself."""
    if not (math.isfinite(value) and value > 0.0):
        return mean
    return math.exp(_moved(math.log(mean), math.log(value))) if mean > 0.0 else value
