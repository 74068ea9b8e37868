"""Reads the metrics endpoint of the Triton server (Prometheus text)."""

import re
import urllib.request
from dataclasses import dataclass

_SAMPLE = re.compile(r"^(\w+)(?:\{(.*)\})? (\S+)$")
_LABEL = re.compile(r'(\w+)="([^"]*)"')


@dataclass(frozen=True)
class Sample:
    """One line of the page."""

    name: str
    labels: dict[str, str]
    value: float


@dataclass(frozen=True)
class Scrape:
    """The page at one moment."""

    samples: list[Sample]

    def total(self, name: str, **labels: str) -> float:
        """Sum of all samples of a family that carry these labels; 0 when there is none."""
        return sum(
            sample.value
            for sample in self.samples
            if sample.name == name and labels.items() <= sample.labels.items()
        )


def parse_metrics(text: str) -> Scrape:
    """Comments and lines that are no sample are passed over."""
    matches = (_SAMPLE.match(line) for line in text.splitlines())
    return Scrape(
        [Sample(m[1], dict(_LABEL.findall(m[2] or "")), float(m[3])) for m in matches if m]
    )


def scrape(metrics_url: str) -> Scrape:
    """Read the page now. Raises OSError when nobody answers within five seconds."""
    with urllib.request.urlopen(metrics_url, timeout=5.0) as response:
        return parse_metrics(response.read().decode("utf-8"))
