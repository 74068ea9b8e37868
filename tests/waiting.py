"""Waiting for what another thread or process brings about."""

import time
from collections.abc import Callable

POLL_S = 0.02


def wait_until(is_true: Callable[[], object], timeout_s: float = 30.0) -> bool:
    """Whether the condition comes true within the timeout."""
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        if is_true():
            return True
        time.sleep(POLL_S)
    return False
