"""Reads the metrics endpoint of the Triton server."""

import time

from canopy.addresses import open_directly
from canopy.metrics_page import MetricsPage

# How a request can end, and last how many there were.
_REQUEST_COUNTERS = ("requests_finished", "requests_failed", "cancellations", "requests")
_SETTLE_S = 0.03


def scrape(metrics_url: str) -> MetricsPage:
    """Read the page now. Raises OSError when nobody answers within five seconds."""
    with open_directly(metrics_url, timeout=5.0) as response:
        return MetricsPage.parse(response.read().decode("utf-8"))


def scrape_idle(metrics_url: str, num_finished: int, timeout_s: float = 30.0) -> MetricsPage:
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
