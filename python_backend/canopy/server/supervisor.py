"""Keeps one server alive: starts it, asks it how it is now and then, restarts it, ends it."""

import signal
import time

from rich.console import Console

from canopy.errors import CannotStart
from canopy.server.probe import Health, ask_for_health, read_metrics
from canopy.server.process import ServerProcess

PROBE_INTERVAL_S = 5.0
PROBE_TIMEOUT_S = 20.0
RETRY_S = 1.0
BROKEN_GRACE_S = 1.0  # a server that failed does not end by itself in any time
MAX_FAILED_STARTS = 5
MAX_BACKOFF_S = 30.0
STABLE_S = 60.0  # a server that lived this long starts with a clean record


class Supervisor:
    """Runs a ServerProcess until SIGTERM or SIGINT."""

    def __init__(
        self, process: ServerProcess, console: Console, interval_s: float = PROBE_INTERVAL_S
    ) -> None:
        self._process = process
        self._console = console
        self._interval_s = interval_s
        self._num_failures = 0
        self._ready_s = 0.0

    def run(self) -> None:
        """Serve until told to stop. Raises CannotStart when the server cannot be kept alive."""
        signal.signal(signal.SIGTERM, signal.default_int_handler)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        try:
            self._start()
            while True:
                self._restart(self._watch())
        except KeyboardInterrupt:
            self._drain()
        finally:
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            signal.signal(signal.SIGINT, signal.SIG_IGN)
            self._process.stop()
        self._console.print("Stopped.")

    def _start(self) -> None:
        start = time.monotonic()
        with self._console.status("Starting the server and loading the models"):
            self._process.start()
            self._process.wait_until_ready()
        self._ready_s = time.monotonic()
        self._console.print(
            f"[bold green]Ready[/] after {self._ready_s - start:.1f} s, "
            f"log in {self._process.log_path}\n"
            f"  HTTP     {self._process.http_url}/v2/models/canopy/generate_stream\n"
            f"  gRPC     {self._process.grpc_url}\n"
            f"  metrics  {self._process.metrics_url}",
            soft_wrap=True,
        )

    def _watch(self) -> str:
        """Return, once the server has failed, why."""
        while True:
            time.sleep(self._interval_s)
            first = self._failure()
            if first is None:
                continue
            time.sleep(RETRY_S)
            if second := self._failure():
                return second

    def _failure(self) -> str | None:
        """A silent entry model is only busy while its engine makes steps."""
        if not self._process.is_running:
            return "its process ended"
        num_steps = self._num_steps()
        result = ask_for_health(self._process.server, PROBE_TIMEOUT_S)
        if result.health is Health.ALIVE:
            return None
        if result.health is Health.TIMEOUT and self._num_steps() > num_steps:
            return None
        return result.reason

    def _num_steps(self) -> float:
        return read_metrics(self._process.server).get("canopy_steps_total", 0.0)

    def _restart(self, reason: str) -> None:
        if time.monotonic() - self._ready_s > STABLE_S:
            self._num_failures = 0
        while True:
            self._console.print(f"[bold red]The server failed[/]: {reason}", soft_wrap=True)
            self._process.stop(BROKEN_GRACE_S)
            self._num_failures += 1
            if self._num_failures > MAX_FAILED_STARTS:
                raise CannotStart(f"it failed {self._num_failures} times; the last time: {reason}")
            time.sleep(min(2.0 ** (self._num_failures - 1), MAX_BACKOFF_S))
            try:
                self._start()
            except CannotStart as error:
                reason = str(error)
            else:
                return

    def _drain(self) -> None:
        """Best effort: a second signal cuts it short."""
        if not self._process.is_running:
            return
        try:
            with self._console.status("Finishing what runs; Ctrl-C again to stop at once"):
                self._process.drain()
        except KeyboardInterrupt:
            self._console.print("Stopping at once.")
