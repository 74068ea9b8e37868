"""The gateway as a process: its listening socket, its connections, and how it stops."""

import logging
import math
import resource
import signal
import time
from dataclasses import replace
from functools import partial
from types import FrameType

import uvicorn

from canopy_gateway.app import create_app
from canopy_gateway.connection import LimitedConnection
from canopy_gateway.settings import GatewaySettings

logger = logging.getLogger(__name__)

_OTHER_FILES = 64  # open files that are no clients' connections


class GatewayServer(uvicorn.Server):
    """Serves until SIGTERM, then drains: it goes on accepting for a moment while /health says 503,
    so that balancers look elsewhere, then refuses, and lets running answers end.

    SIGINT, or a second signal, leaves the moment out.
    """

    def __init__(self, settings: GatewaySettings, host: str = "127.0.0.1", port: int = 0) -> None:
        settings = replace(settings, max_connections=_possible(settings.max_connections))
        self._app = create_app(settings)
        self._drain_s = settings.drain_s
        self._accepts_until_s: float | None = None
        super().__init__(
            uvicorn.Config(
                self._app,
                host=host,
                port=port,
                http=partial(LimitedConnection, settings, lambda: self.is_draining),  # type: ignore[arg-type]
                ws="none",
                timeout_keep_alive=math.ceil(settings.keep_alive_s),
                timeout_graceful_shutdown=math.ceil(settings.request_timeout_s),
                server_header=False,
                log_config=None,
            )
        )

    @property
    def is_draining(self) -> bool:
        """Whether a signal asked it to stop."""
        return self._accepts_until_s is not None

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """A signal."""
        if self.is_draining or sig != signal.SIGTERM:
            super().handle_exit(sig, frame)
        self._accepts_until_s = self._accepts_until_s or time.monotonic() + self._drain_s
        self._app.state.is_draining = True

    async def on_tick(self, counter: int) -> bool:
        """Ten times a second."""
        if self._accepts_until_s is not None and time.monotonic() >= self._accepts_until_s:
            self.should_exit = True
        return await super().on_tick(counter)


def _possible(max_connections: int) -> int:
    """No more than there can be open files: beyond, accepting fails with a log line each time."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = max_connections + _OTHER_FILES
    if soft < wanted:
        soft = min(wanted, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    if soft < wanted:
        logger.warning("at most %d open files: connections are limited to %d", soft, soft // 2)
        return soft // 2
    return max_connections
