"""A page of metrics in the Prometheus text format, as the Triton server publishes it."""

import re
from dataclasses import dataclass

_SAMPLE = re.compile(r"^(\w+)(?:\{(.*)\})?\s+(\S+)(?:\s+\d+)?$")
_LABEL = re.compile(r'(\w+)="([^"]*)"')


@dataclass(frozen=True)
class Sample:
    """One value of a metric family."""

    name: str
    labels: dict[str, str]
    value: float

    @property
    def series(self) -> str:
        """Name and labels as on the page."""
        labels = ",".join(f'{name}="{value}"' for name, value in self.labels.items())
        return f"{self.name}{{{labels}}}" if labels else self.name


@dataclass(frozen=True)
class MetricsPage:
    """The samples of a page, in its order."""

    samples: list[Sample]

    @staticmethod
    def parse(text: str) -> "MetricsPage":
        """Comments, and lines that are no sample, are skipped."""
        matches = (_SAMPLE.match(line) for line in text.splitlines())
        samples = (_sample(match) for match in matches if match)
        return MetricsPage([sample for sample in samples if sample])

    def values(self, name: str, **labels: str) -> list[float]:
        """The values of a family's samples that carry these labels."""
        return [
            sample.value
            for sample in self.samples
            if sample.name == name and labels.items() <= sample.labels.items()
        ]

    def series(self, prefix: str = "") -> dict[str, float]:
        """Values by name with labels, as the page writes them, of families that begin so."""
        return {s.series: s.value for s in self.samples if s.name.startswith(prefix)}

    def total(self, name: str, **labels: str) -> float:
        """The sum of `values`; 0 without any."""
        return sum(self.values(name, **labels))


def _sample(match: re.Match[str]) -> Sample | None:
    try:
        value = float(match[3])
    except ValueError:
        return None
    return Sample(match[1], dict(_LABEL.findall(match[2] or "")), value)
