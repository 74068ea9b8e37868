"""Keeps an eye on the server's load: a daemon thread reads the metrics page by the clock."""

import logging
import threading
import time
from dataclasses import dataclass

from canopy.addresses import metrics_url, open_directly
from canopy.config import ServerConfig
from canopy.tree_builder.server_load import LoadState, ServerLoad, parse_load

logger = logging.getLogger(__name__)

INTERVAL_S = 1.0
TIMEOUT_S = 1.0
STALE_AFTER_S = 3.0
FORGOTTEN_AFTER_S = 60.0
_MOST_BYTES = 4 << 20


@dataclass(frozen=True)
class KnownLoad:
    """What is known of the load now."""

    load: ServerLoad
    state: LoadState


NOT_KNOWN = KnownLoad(ServerLoad(), LoadState.DEFAULT)


class LoadMonitor:
    """Polls until `close`. Nothing that the endpoint does reaches the reader as an error."""

    def __init__(self, server: ServerConfig, interval_s: float = INTERVAL_S) -> None:
        self._url = metrics_url(server)
        self._interval_s = interval_s
        self._last: tuple[ServerLoad, float] | None = None  # with the time of its reading
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._run, name="canopy-load", daemon=True)
        self._thread.start()

    def read(self) -> KnownLoad:
        """The last believable load, and how far to believe it; never waits, never raises."""
        if self._last is None:
            return NOT_KNOWN
        load, read_s = self._last
        age_s = time.monotonic() - read_s
        if age_s > FORGOTTEN_AFTER_S:
            return NOT_KNOWN
        return KnownLoad(load, LoadState.STALE if age_s > STALE_AFTER_S else LoadState.FRESH)

    def close(self) -> None:
        """Stop polling; what was read grows stale."""
        self._closed.set()
        self._thread.join(timeout=2 * TIMEOUT_S)

    def _run(self) -> None:
        has_failed = False
        while not self._closed.wait(self._interval_s):
            try:
                self._poll()
                has_failed = False
            except Exception as error:
                if not has_failed:
                    logger.warning("the server's load cannot be read: %r", error)
                has_failed = True

    def _poll(self) -> None:
        with open_directly(self._url, timeout=TIMEOUT_S) as response:
            load = parse_load(response.read(_MOST_BYTES).decode("utf-8"))
        earlier = self._last[0] if self._last else load
        self._last = load.after(earlier), time.monotonic()
