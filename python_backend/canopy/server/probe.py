"""Is the service alive? Asked with a real request, since the server's readiness cannot tell.

The server answers 200 to readiness for ever, whatever became of its models' processes.
"""

import json
import urllib.error
import urllib.request
from dataclasses import dataclass
from enum import Enum
from http.client import HTTPException

from canopy.addresses import http_url, metrics_url, open_directly
from canopy.config import ServerConfig

PROBE = {
    "text_input": "a",
    "sampling_parameters": json.dumps({"max_tokens": 1, "temperature": 0, "speculation": "off"}),
}


class Health(Enum):
    """What a probe found."""

    ALIVE = "alive"
    TIMEOUT = "silent"  # no answer in time: busy or stuck
    BROKEN = "broken"  # refused, or answered by the server instead of the model


@dataclass(frozen=True)
class ProbeResult:
    """The finding and its reason in words."""

    health: Health
    reason: str


def probe(server: ServerConfig, timeout_s: float) -> ProbeResult:
    """Ask for one token. Errors of our own, which carry `[code] `, are signs of life too."""
    try:
        status, text = _post(server, PROBE, timeout_s)
    except TimeoutError:
        return ProbeResult(Health.TIMEOUT, f"no answer within {timeout_s:g} s")
    except urllib.error.URLError as error:
        silent = isinstance(error.reason, TimeoutError)
        health = Health.TIMEOUT if silent else Health.BROKEN
        return ProbeResult(health, str(error.reason))
    except (OSError, HTTPException) as error:
        return ProbeResult(Health.BROKEN, repr(error))
    is_ours = status == 200 or '"error":"[unavailable]' in text
    return ProbeResult(Health.ALIVE if is_ours else Health.BROKEN, text.strip())


def start_draining(server: ServerConfig, timeout_s: float) -> bool:
    """Tell the entry model to admit nothing more; False when it could not be told."""
    try:
        status, _ = _post(server, {"control": json.dumps({"op": "drain"})}, timeout_s)
    except (OSError, HTTPException):
        return False
    return status == 200


def read_metrics(server: ServerConfig, timeout_s: float = 2.0) -> dict[str, float]:
    """Our own metric families by name with labels; empty when the server is not there."""
    try:
        with open_directly(metrics_url(server), timeout=timeout_s) as response:
            lines = response.read().decode("utf-8").splitlines()
    except (OSError, HTTPException):
        return {}
    pairs = (line.rsplit(" ", 1) for line in lines if line.startswith("canopy_"))
    return {name: float(value) for name, value in pairs}


def _post(server: ServerConfig, body: dict[str, str], timeout_s: float) -> tuple[int, str]:
    url = f"{http_url(server)}/v2/models/canopy/generate"
    data = json.dumps(body).encode("utf-8")
    request = urllib.request.Request(url, data, {"Content-Type": "application/json"})
    try:
        with open_directly(request, timeout=timeout_s) as response:
            return response.status, response.read().decode("utf-8", "replace")
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode("utf-8", "replace")
