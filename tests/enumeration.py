"""Exact enumeration: run a random computation once for every outcome, with its probability."""

from collections.abc import Callable, Iterator
from typing import TypeVar

import numpy as np

Result = TypeVar("Result")


class EnumeratingSource:
    """A RandomSource that takes one outcome at every choice and multiplies up its probability."""

    def __init__(self, places: list[int]) -> None:
        self.places = places  # taken at the first choices; the later ones take the first possible
        self.later: list[list[int]] = []  # possible places after the taken one, by choice
        self.probability = 1.0

    def bernoulli(self, probability: float, index: int) -> bool:
        return self._choose([1.0 - probability, float(probability)]) == 1

    def sample(self, probs: np.ndarray, index: int) -> int:
        return self._choose((probs / probs.sum()).tolist())

    def _choose(self, probs: list[float]) -> int:
        possible = [place for place, probability in enumerate(probs) if probability > 0.0]
        choice = len(self.later)
        if choice == len(self.places):
            self.places.append(possible[0])
        place = self.places[choice]
        self.later.append(possible[possible.index(place) + 1 :])
        self.probability *= probs[place]
        return place


def enumerate_outcomes(
    run: Callable[[EnumeratingSource], Result],
) -> Iterator[tuple[Result, float]]:
    """Every result of `run` with its probability; they sum to 1. Results may repeat."""
    places: list[int] = []
    while True:
        random_source = EnumeratingSource(places)
        yield run(random_source), random_source.probability
        while random_source.later and not random_source.later[-1]:
            random_source.later.pop()
        if not random_source.later:
            return
        last = len(random_source.later) - 1
        places = [*random_source.places[:last], random_source.later[last][0]]
