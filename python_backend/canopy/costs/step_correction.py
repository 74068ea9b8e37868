"""How a machine's step times deviate from the grid that was measured on it.

    verify_ms ~ ratio * predicted_ms + sequence_ms * R        R sequences

A slow machine or long contexts stretch a step; what every sequence costs whatever it verifies, as
answers that are sent meanwhile on the same cores, comes on top of it and raises no node's price.
The two are told apart by least squares over the last steps, relative to what was predicted. Where
these were all alike they cannot be told apart: a quarter of the deviation is given to the ratio.
"""

import math
from dataclasses import dataclass
from typing import TypeVar

import numpy as np

Times = TypeVar("Times", float, np.ndarray)

_KEPT = 0.95  # of a step's weight from one step to the next
_PRIOR = 0.5  # steps that "as predicted, and shares of what is not" is worth
_STRETCHED = 0.25  # share of the ratio where steps do not tell
_SHORTEST_MS, _LONGEST_MS = 1e-3, 1e6  # of a prediction
_RATIO_BOUND = 20.0  # measured over predicted; beyond it a clock or a table lies
_SURPRISE = 2.0  # by this factor at most a step is taken to deviate: stalls are not the trend


@dataclass(frozen=True)
class StepCorrection:
    """Sums over the last steps: x = R / predicted_ms, y = verify_ms / predicted_ms."""

    weight: float = 0.0
    x: float = 0.0
    xx: float = 0.0
    y: float = 0.0
    xy: float = 0.0

    @property
    def ratio(self) -> float:
        """By which a step is stretched."""
        return self._solved[0]

    def corrected_ms(self, predicted_ms: Times, num_sequences: int) -> Times:
        """Of one step, or of each of several."""
        ratio, sequence_ms = self._solved
        return ratio * predicted_ms + sequence_ms * num_sequences

    def after(self, verify_ms: float, predicted_ms: float, num_sequences: int) -> "StepCorrection":
        """The correction after a measured step; non-finite inputs are ignored."""
        if not (_SHORTEST_MS < predicted_ms < _LONGEST_MS and 0.0 < verify_ms < math.inf):
            return self
        x, y = num_sequences / predicted_ms, verify_ms / predicted_ms
        ratio, sequence_ms = self._solved
        expected = ratio + sequence_ms * x
        y = max(expected / _SURPRISE, min(expected * _SURPRISE, y))
        y = max(1.0 / _RATIO_BOUND, min(_RATIO_BOUND, y))
        return StepCorrection(
            _KEPT * self.weight + 1.0,
            _KEPT * self.x + x,
            _KEPT * self.xx + x * x,
            _KEPT * self.y + y,
            _KEPT * self.xy + x * y,
        )

    @property
    def _solved(self) -> tuple[float, float]:
        """Ratio and sequence_ms; neither makes a step cheaper with more sequences."""
        if self.weight == 0.0 or self.xx == 0.0:
            return 1.0, 0.0
        a, b = self.weight + _PRIOR, self.x
        c = self.xx * (1.0 + _PRIOR / self.weight * _STRETCHED / (1.0 - _STRETCHED))
        determinant = a * c - b * b
        sequence_ms = (a * self.xy - b * (self.y + _PRIOR)) / determinant
        if sequence_ms < 0.0:
            return (self.y + _PRIOR) / a, 0.0
        ratio = ((self.y + _PRIOR) * c - b * self.xy) / determinant
        return max(1.0 / _RATIO_BOUND, ratio), sequence_ms
