"""A peer's process: a group of its own, spoken to in lines of JSON."""

import json
import os
import queue
import signal
import subprocess
import threading
from pathlib import Path
from typing import Any, Self

from bench.peers.arm import CannotRun
from canopy.cpus import usable_cpus
from canopy.server.runtime import THREAD_VARIABLES

START_TIMEOUT_S = 300.0
EXIT_TIMEOUT_S = 10.0
_LAST_CHARACTERS = 300


class PeerProcess:
    """As a context manager: running inside, gone afterwards.

    The process writes one line of JSON when it is ready, and ends when its input does.
    """

    def __init__(self, python: Path, script: Path, settings: dict[str, Any], log: Path) -> None:
        # -P: the script's neighbours must not stand in for packages of their names.
        self._command = [str(python), "-P", str(script), json.dumps(settings)]
        self._log = log
        self._lines: queue.SimpleQueue[str] = queue.SimpleQueue()

    def send(self, message: dict[str, Any]) -> None:
        """Write one line. Raises CannotRun when the process is gone."""
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps(message) + "\n")
            self._process.stdin.flush()
        except OSError as error:
            raise self._failure() from error

    def receive(self, timeout_s: float) -> Any:
        """Read one line. Raises CannotRun when none comes in time, or ever."""
        try:
            line = self._lines.get(timeout=timeout_s)
        except queue.Empty:
            raise CannotRun(f"no answer within {timeout_s:g} s") from None
        if not line:
            raise self._failure()
        return json.loads(line)

    @property
    def group(self) -> int:
        """The process group, which holds it and its children."""
        return self._process.pid

    def _failure(self) -> CannotRun:
        status = self._process.wait(EXIT_TIMEOUT_S)
        last = self._log.read_text("utf-8", "replace").strip().splitlines()[-1:]
        return CannotRun(f"exit status {status}: {''.join(last)[-_LAST_CHARACTERS:]}")

    def _read(self) -> None:
        for line in self._process.stdout or ():
            self._lines.put(line)
        self._lines.put("")

    def __enter__(self) -> Self:
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                self._command,
                env=peer_environment(),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                start_new_session=True,
            )
        threading.Thread(target=self._read, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        assert self._process.stdin is not None
        try:
            self._process.stdin.close()
            self._process.wait(EXIT_TIMEOUT_S)
        except (OSError, subprocess.TimeoutExpired):
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()


def peer_environment() -> dict[str, str]:
    """Threads wait as their library has them wait, not as those of our server's processes."""
    kept = {name: value for name, value in os.environ.items() if name not in THREAD_VARIABLES}
    return {**kept, "HF_HUB_OFFLINE": "1", "PYTHONUNBUFFERED": "1"}


def all_cores() -> int:
    """Threads of every peer."""
    return usable_cpus()
