"""Reads the metrics endpoint of the Triton server (Prometheus text)."""

import re
import time
from dataclasses import dataclass

from canopy.addresses import open_directly

_SAMPLE = re.compile(r"^(\w+)(?:\{(.*)\})? (\S+)$")
_LABEL = re.compile(r'(\w+)="([^"]*)"')
# How a request can end, and last how many there were.
_REQUEST_COUNTERS = ("requests_finished", "requests_failed", "cancellations", "requests")
_SETTLE_S = 0.03


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
    with open_directly(metrics_url, timeout=5.0) as response:
        return parse_metrics(response.read().decode("utf-8"))


def scrape_idle(metrics_url: str, num_finished: int, timeout_s: float = 30.0) -> Scrape:
    """The page once at least so many requests are counted as finished, and none is open.

    The counters are published when the engine has fallen idle, a moment after the last answer,
    so two equal readings in a row are asked for. Raises TimeoutError.
    """
    deadline = time.monotonic() + timeout_s
    last = None
    while time.monotonic() < deadline:
        page = scrape(metrics_url)
        counts = tuple(page.total(f"canopy_{name}_total") for name in _REQUEST_COUNTERS)
        num_answered = counts[0]
        is_settled = num_answered >= num_finished and sum(counts[:-1]) == counts[-1]
        if is_settled and counts == last:
            return page
        last = counts
        time.sleep(_SETTLE_S)
    raise TimeoutError(f"the server did not count {num_finished} requests as finished")
