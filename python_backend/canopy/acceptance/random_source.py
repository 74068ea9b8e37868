"""Where the random decisions of the ratio rules come from.

The rules ask a `RandomSource`, so that production, which reads counter-based noise, and the linter,
which follows every outcome with its probability, run the same code.
"""

from dataclasses import dataclass
from typing import Protocol

import numpy as np

from canopy_kernels.sampling.noise import ACCEPT, DRAFT, uniform


class RandomSource(Protocol):
    """Independent random decisions, told apart by `index`: of one node, or of a whole tree."""

    def bernoulli(self, probability: float, index: int) -> bool:
        """True with the given probability."""
        ...

    def sample(self, probs: np.ndarray, index: int) -> int:
        """A place in `probs` (float64 [n], not necessarily normalized), by its share."""
        ...


@dataclass(frozen=True)
class Noise:
    """A RandomSource that reads one stream of the request's noise."""

    seed: int
    position: int
    stream: int
    branch: int = 0

    def bernoulli(self, probability: float, index: int) -> bool:
        return self._uniform(index) < probability

    def sample(self, probs: np.ndarray, index: int) -> int:
        mass = np.cumsum(probs)
        return int(np.searchsorted(mass, self._uniform(index) * mass[-1], side="right"))

    def _uniform(self, index: int) -> float:
        return uniform(self.seed, self.position, index, self.stream, self.branch)


def draft_noise(seed: int, position: int, node: int) -> Noise:
    """Decides the children of `node` in the proposal of the round whose first token is `position`.

    No two rounds of a sequence share a draw, so a shape may follow from what earlier ones drew.
    """
    return Noise(seed, position, DRAFT, node)


def accept_noise(seed: int, position: int) -> Noise:
    """Decides the token at `position`, or in traversal all tokens of the round from there on.

    Either way a position is used once, so no branch is needed.
    """
    return Noise(seed, position, ACCEPT)
