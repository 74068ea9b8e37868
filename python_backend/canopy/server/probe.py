"""Is the service alive? Asked of the entry model, since the server's readiness cannot tell.

The server answers 200 to readiness for ever, whatever became of its models' processes. The entry
model answers for its engine and its stages, at once, however many requests wait.
"""

import json
import urllib.error
import urllib.request
from dataclasses import dataclass
from enum import Enum
from http.client import HTTPException
from typing import Any

from canopy.addresses import http_url, metrics_url, open_directly
from canopy.config import ServerConfig
from canopy.metrics_page import MetricsPage

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


def ask_for_token(server: ServerConfig, timeout_s: float) -> ProbeResult:
    """A real request of one token, for the start. It stands in the queue like any other."""
    return _ask(server, PROBE, timeout_s)[0]


def ask_for_health(server: ServerConfig, timeout_s: float) -> ProbeResult:
    """What the entry model says of itself; alive is also who is busy, or loads a stage again."""
    result, answer = _ask(server, _control("health"), timeout_s)
    if result.health is Health.ALIVE and not answer.get("is_alive", False):
        return ProbeResult(Health.BROKEN, str(answer.get("reason", result.reason)))
    return result


def drain(server: ServerConfig, timeout_s: float) -> tuple[Health, int | None]:
    """Have nothing more accepted, and ask how many requests are left; None: nobody can tell."""
    result, answer = _ask(server, _control("drain"), timeout_s)
    num_left = answer.get("num_left")
    return result.health, num_left if isinstance(num_left, int) else None


def end_requests(server: ServerConfig, timeout_s: float) -> None:
    """Have the requests that are left told that the server stops; best effort."""
    _ask(server, _control("stop"), timeout_s)


def _control(operation: str) -> dict[str, str]:
    return {"control": json.dumps({"op": operation})}


def _ask(
    server: ServerConfig, body: dict[str, str], timeout_s: float
) -> tuple[ProbeResult, dict[str, Any]]:
    """What came back, and the JSON in it. Errors of our own are signs of life too."""
    try:
        status, text = _post(server, body, timeout_s)
    except TimeoutError:
        return ProbeResult(Health.TIMEOUT, f"no answer within {timeout_s:g} s"), {}
    except urllib.error.URLError as error:
        silent = isinstance(error.reason, TimeoutError)
        health = Health.TIMEOUT if silent else Health.BROKEN
        return ProbeResult(health, str(error.reason)), {}
    except (OSError, HTTPException) as error:
        return ProbeResult(Health.BROKEN, repr(error)), {}
    is_ours = status == 200 or '"error":"[unavailable]' in text
    health = Health.ALIVE if is_ours else Health.BROKEN
    return ProbeResult(health, text.strip()), _answer_in(text)


def _answer_in(text: str) -> dict[str, Any]:
    try:
        answer = json.loads(json.loads(text)["text_output"])
    except (ValueError, KeyError, TypeError):
        return {}
    return answer if isinstance(answer, dict) else {}


def read_metrics(server: ServerConfig, timeout_s: float = 2.0) -> dict[str, float]:
    """Our own metric families by name with labels; empty when the server is not there."""
    try:
        with open_directly(metrics_url(server), timeout=timeout_s) as response:
            page = response.read().decode("utf-8")
    except (OSError, HTTPException):
        return {}
    return MetricsPage.parse(page).series("canopy_")


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
