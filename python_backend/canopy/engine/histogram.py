"""A histogram as Prometheus means it: how many observations lie at or under each bound."""

from bisect import bisect_left
from itertools import accumulate


class Histogram:
    """`bounds` ascend; what lies above the last of them is counted too."""

    def __init__(self, *bounds: float) -> None:
        self.bounds = bounds
        self.sum = 0.0
        self._counts = [0] * (len(bounds) + 1)

    def observe(self, value: float, count: int = 1) -> None:
        """The same value, so many times."""
        self._counts[bisect_left(self.bounds, value)] += count
        self.sum += value * count

    @property
    def count(self) -> int:
        """Observations so far."""
        return sum(self._counts)

    def cumulated(self) -> list[tuple[str, int]]:
        """The label `le` and its count, "+Inf" last."""
        labels = [*(f"{bound:g}" for bound in self.bounds), "+Inf"]
        return list(zip(labels, accumulate(self._counts), strict=True))
