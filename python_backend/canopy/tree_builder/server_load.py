"""What the Triton server's metrics page says about load. Text in, numbers out.

A page is believed as a whole or not at all: every gauge of the service must be there and be a
count that a server can have. The built-in families of plain models and of the GPU are optional.
"""

import math
import re
from dataclasses import dataclass, replace
from enum import IntEnum

_SAMPLE = re.compile(r"^(\w+)(?:\{(.*)\})?\s+(\S+)(?:\s+\d+)?$")
_MOST = 1e15  # of anything on the page
_MOST_SEQUENCES = 1e6
_GAUGES = {
    "canopy_running_sequences": _MOST_SEQUENCES,
    "canopy_waiting_sequences": _MOST_SEQUENCES,
    "canopy_kv_blocks_free": 1e9,
    "canopy_kv_blocks_used": 1e9,
}
_QUEUE, _COMPUTE = "nv_inference_queue_duration_us", "nv_inference_compute_infer_duration_us"
_VERIFIER = 'model="verifier"'


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

    num_running: int = 0
    num_waiting: int = 0
    num_free_blocks: int = 0
    num_used_blocks: int = 0
    queue_us: float = 0.0  # of the verifier, since the server started
    compute_us: float = 0.0
    verifier_queue: float = 0.0  # executions that stood before one of ours, since the last page
    gpu_utilization: float = 0.0  # 0 to 1, of the busiest; 0 without one
    gpu_memory: float = 0.0  # share in use

    @property
    def num_blocks(self) -> int:
        """Size of the KV cache; 0 = not known."""
        return self.num_free_blocks + self.num_used_blocks

    def after(self, earlier: "ServerLoad") -> "ServerLoad":
        """The same with what happened since `earlier`; counters that fell say nothing."""
        queue_us = self.queue_us - earlier.queue_us
        compute_us = self.compute_us - earlier.compute_us
        queued = queue_us / compute_us if queue_us > 0.0 and compute_us > 0.0 else 0.0
        return replace(self, verifier_queue=min(queued, _MOST_SEQUENCES))


def parse_load(page: str) -> ServerLoad:
    """Read a metrics page in Prometheus text format. Raises BadPage."""
    samples = _samples(page)
    running, waiting, free_blocks, used_blocks = (
        _gauge(samples, name, most) for name, most in _GAUGES.items()
    )
    used, total = (
        _largest(samples, f"nv_gpu_memory_{part}_bytes", _MOST) for part in ("used", "total")
    )
    return ServerLoad(
        running,
        waiting,
        free_blocks,
        used_blocks,
        queue_us=_largest(samples, _QUEUE, _MOST, _VERIFIER),
        compute_us=_largest(samples, _COMPUTE, _MOST, _VERIFIER),
        gpu_utilization=_largest(samples, "nv_gpu_utilization", 1.0),
        gpu_memory=min(used / total, 1.0) if total else 0.0,
    )


def _samples(page: str) -> dict[str, list[tuple[str, float]]]:
    """Labels and value by family; comments and lines that are no sample are passed over."""
    samples: dict[str, list[tuple[str, float]]] = {}
    for line in page.splitlines():
        if match := _SAMPLE.match(line):
            try:
                value = float(match[3])
            except ValueError:
                continue
            samples.setdefault(match[1], []).append((match[2] or "", value))
    return samples


def _gauge(samples: dict[str, list[tuple[str, float]]], name: str, most: float) -> int:
    values = [value for _, value in samples.get(name, [])]
    if len(values) != 1 or not (math.isfinite(values[0]) and 0.0 <= values[0] <= most):
        raise BadPage(f"{name} is {values or 'missing'}")
    return int(values[0])


def _largest(
    samples: dict[str, list[tuple[str, float]]], name: str, most: float, label: str = ""
) -> float:
    """The largest believable value of an optional family; 0 without one."""
    values = [value for labels, value in samples.get(name, []) if label in labels]
    return max((value for value in values if 0.0 <= value <= most), default=0.0)
