"""The order of measurements, and what is read off them; no clock and no process here.

    tokens/s = sum of tokens / sum over batches of the median seconds of its repeats
    ratio    = tokens/s of one arm over that of another, on the same batches

The paired ratios beside it compare every batch and repeat with itself; their spread shows what
the noise of the machine is worth.
"""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import cycle, islice
from statistics import median, quantiles
from typing import TypeVar

from bench.harness.benchmark import Record

T = TypeVar("T")


@dataclass(frozen=True)
class Sample:
    """One arm's answers to one batch of prompts, sent at once."""

    arm: str
    concurrency: int
    batch: int
    repeat: int
    seconds: float  # from the first request sent to the last answer's end
    num_tokens: int
    first_token_s: tuple[float, ...]  # by answer

    @property
    def tokens_per_second(self) -> float:
        return self.num_tokens / self.seconds


def arm_order(arms: Sequence[T], turn: int) -> list[T]:
    """Every arm once; who begins changes from turn to turn, and so does the direction.

    Over 2 * len(arms) turns each arm stands in every place twice, and as often before as after
    each other one.
    """
    start = (turn // 2) % max(len(arms), 1)
    order = [*arms[start:], *arms[:start]]
    return order[::-1] if turn % 2 else order


def batches(prompts: Sequence[T], size: int) -> list[list[T]]:
    """Full batches, in order; the last one is filled up from the start."""
    num_batches = -(-len(prompts) // size)
    filled = list(islice(cycle(prompts), num_batches * size))
    return [filled[first : first + size] for first in range(0, len(filled), size)]


def tokens_per_second(samples: Iterable[Sample]) -> float:
    """Of the samples of one arm at one concurrency."""
    by_batch: dict[int, list[Sample]] = defaultdict(list)
    for sample in samples:
        by_batch[sample.batch].append(sample)
    num_tokens = sum(repeats[0].num_tokens for repeats in by_batch.values())
    return num_tokens / sum(median(s.seconds for s in repeats) for repeats in by_batch.values())


def paired_ratios(samples: Iterable[Sample], others: Iterable[Sample]) -> list[float]:
    """Ratios of tokens per second, one for each batch and repeat that both have."""
    speeds = {(s.batch, s.repeat): s.tokens_per_second for s in others}
    return [
        s.tokens_per_second / speeds[key] for s in samples if (key := (s.batch, s.repeat)) in speeds
    ]


@dataclass(frozen=True)
class Samples:
    """All samples of a run."""

    samples: Sequence[Sample]

    @property
    def arms(self) -> list[str]:
        """In the order of their first samples."""
        return list(dict.fromkeys(sample.arm for sample in self.samples))

    @property
    def concurrencies(self) -> list[int]:
        return sorted({sample.concurrency for sample in self.samples})

    def of(self, arm: str, concurrency: int) -> list[Sample]:
        """Of one arm at one concurrency; empty when it was not measured there."""
        return [s for s in self.samples if (s.arm, s.concurrency) == (arm, concurrency)]

    def speed(self, arm: str, concurrency: int) -> float | None:
        """Tokens per second, if it was measured."""
        samples = self.of(arm, concurrency)
        return tokens_per_second(samples) if samples else None

    def ratio(self, arm: str, other: str, concurrency: int) -> float | None:
        """Of tokens per second, if both were measured."""
        speed, other_speed = self.speed(arm, concurrency), self.speed(other, concurrency)
        return speed / other_speed if speed and other_speed else None


def speed_records(samples: Samples) -> list[Record]:
    """One record for each arm and concurrency: medians over answers."""
    return [
        {
            "arm": arm,
            "concurrent": concurrency,
            "tokens_per_s": tokens_per_second(measured),
            "first_token_ms": 1e3 * median(t for s in measured for t in s.first_token_s),
            "answers": sum(len(s.first_token_s) for s in measured),
        }
        for concurrency in samples.concurrencies
        for arm in samples.arms
        if (measured := samples.of(arm, concurrency))
    ]


def ratio_records(samples: Samples, arm: str) -> list[Record]:
    """`arm` over each other arm: the ratio, and quartiles of the paired ratios."""
    records = []
    for concurrency in samples.concurrencies:
        for other in samples.arms:
            ratio = samples.ratio(arm, other, concurrency)
            if other == arm or ratio is None:
                continue
            pairs = paired_ratios(samples.of(arm, concurrency), samples.of(other, concurrency))
            low, middle, high = quartiles(pairs)
            records.append(
                {
                    "over": other,
                    "concurrent": concurrency,
                    "ratio": ratio,
                    "paired_q1": low,
                    "paired_median": middle,
                    "paired_q3": high,
                }
            )
    return records


def quartiles(values: Sequence[float]) -> tuple[float, float, float]:
    """First, second and third, of one value or more."""
    if len(values) == 1:
        return values[0], values[0], values[0]
    low, middle, high = quantiles(values, n=4, method="inclusive")
    return low, middle, high
