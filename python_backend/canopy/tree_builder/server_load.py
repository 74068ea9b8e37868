"""What the Triton server's metrics page says about load. Text in, numbers out.

A page is believed as a whole or not at all: every gauge of the service must be there and be a
count that a server can have. The built-in families of plain models are optional.
"""

import math
from dataclasses import dataclass, replace
from enum import IntEnum

from canopy.metrics_page import MetricsPage

_MOST = 1e15  # of a counter
_MOST_SEQUENCES = 1e6
_GAUGES = {
    "canopy_running_sequences": _MOST_SEQUENCES,
    "canopy_waiting_sequences": _MOST_SEQUENCES,
    "canopy_kv_blocks_free": 1e9,
    "canopy_kv_blocks_used": 1e9,
}


class LoadState(IntEnum):
    """How far the load is to be believed."""

    FRESH = 0
    STALE = 1  # the last one known; the endpoint fails
    DEFAULT = 2  # none known, or too old: the step's own message stands alone


class BadPage(ValueError):
    """The page is not the metrics of this service, or it cannot be true."""


@dataclass(frozen=True)
class ServerLoad:
    """The server at one moment; the default knows of no load at all."""

    num_waiting: int = 0
    queue_us: float = 0.0  # of the verifier, since the server started
    compute_us: float = 0.0
    verifier_queue: float = 0.0  # executions that stood before one of ours, since the last page

    def after(self, earlier: "ServerLoad") -> "ServerLoad":
        """The same with what happened since `earlier`; counters that fell say nothing."""
        queue_us = self.queue_us - earlier.queue_us
        compute_us = self.compute_us - earlier.compute_us
        queued = queue_us / compute_us if queue_us > 0.0 and compute_us > 0.0 else 0.0
        return replace(self, verifier_queue=min(queued, _MOST_SEQUENCES))


def parse_load(text: str) -> ServerLoad:
    """Read a metrics page in Prometheus text format. Raises BadPage."""
    page = MetricsPage.parse(text)
    gauges = {name: _gauge(page, name, most) for name, most in _GAUGES.items()}
    return ServerLoad(
        gauges["canopy_waiting_sequences"],
        queue_us=_counter(page, "nv_inference_queue_duration_us"),
        compute_us=_counter(page, "nv_inference_compute_infer_duration_us"),
    )


def _gauge(page: MetricsPage, name: str, most: float) -> int:
    values = page.values(name)
    if len(values) != 1 or not (math.isfinite(values[0]) and 0.0 <= values[0] <= most):
        raise BadPage(f"{name} is {values or 'missing'}")
    return int(values[0])


def _counter(page: MetricsPage, name: str) -> float:
    """The verifier's, if it can be true; else 0."""
    values = page.values(name, model="verifier")
    return max((value for value in values if 0.0 <= value <= _MOST), default=0.0)
