"""Rank 0's hold on the others: one operation at a time, a pulse in between, and their end.

A rank that dies closes its connections, so the next collective fails at once; one that hangs lets
it run into `worker_timeout_s`. The pulse makes both seen while nothing else is asked, and tells
the others that rank 0 lives. After the first failure nothing works any more: ranks may be out of
step. Workers on this machine end with rank 0 whatever ends it, since they watch a pipe from it.
"""

import atexit
import logging
import os
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from typing import TypeVar

import torch
import torch.distributed as dist
from torch.distributed.distributed_c10d import _abort_process_group

from canopy.errors import StageFailed
from canopy.verifier.tensor_parallel.commands import Operation, broadcast

logger = logging.getLogger(__name__)

PULSE_S = 1.0
EXIT_S = 0.5  # a process that was killed may be reported a moment after its connections
T = TypeVar("T")


class LocalWorkers:
    """Ranks 1.. as processes on this machine; none outlives this process."""

    def __init__(self) -> None:
        self._processes: dict[int, subprocess.Popen[bytes]] = {}

    def start(self, rank: int, arguments: Sequence[str], module: str) -> None:
        """Run a worker module of the same Python; its standard input is the pipe it watches."""
        command = [_python(), "-m", module, *arguments]
        self._processes[rank] = subprocess.Popen(command, stdin=subprocess.PIPE)

    @property
    def pids(self) -> list[int]:
        return [process.pid for process in self._processes.values()]

    def dead(self) -> str:
        """Which have ended, and how; empty while all live."""
        codes = {rank: process.poll() for rank, process in self._processes.items()}
        ended = [f"rank {r} ended with {c}" for r, c in codes.items() if c is not None]
        return ", ".join(ended)

    def check(self) -> None:
        """Raises StageFailed when one has ended."""
        if dead := self.dead():
            raise StageFailed("verifier", dead)

    def kill(self) -> None:
        """End all, at once."""
        for process in self._processes.values():
            process.kill()
            process.wait()
            if process.stdin:
                process.stdin.close()


class RankGroup:
    """All ranks as rank 0 sees them. Thread-safe; `close` it, or let the process end."""

    def __init__(self, workers: LocalWorkers, store: dist.Store) -> None:
        self.workers = workers
        self._store = store  # lives as long as the group that was made over it
        self._lock = threading.Lock()
        self._failure = ""
        self.ended = threading.Event()  # by a failure or by `close`
        threading.Thread(target=self._keep_pulse, name="pulse", daemon=True).start()
        atexit.register(self.close)

    @property
    def failure(self) -> str:
        """Why nothing works any more; empty while everything does."""
        return self._failure

    def run(self, operation: Operation, arrays: Sequence[torch.Tensor], work: Callable[[], T]) -> T:
        """Have every rank do its part, this one by `work`. Raises StageFailed."""
        with self._lock:
            if self._failure:
                raise StageFailed("verifier", self._failure)
            try:
                broadcast(operation, arrays)
                return work()
            except Exception as error:
                self._fail(error)
                raise StageFailed("verifier", self._failure) from error

    def close(self) -> None:
        """Send the others home."""
        atexit.unregister(self.close)
        with self._lock:
            if not self._failure:
                self._failure = "the ranks were sent home"
                try:
                    broadcast(Operation.STOP)
                except RuntimeError as error:
                    logger.warning("a rank was gone before it was sent home: %s", error)
                    self._end(_abort_process_group)
                else:
                    self._end(dist.destroy_process_group)

    def _keep_pulse(self) -> None:
        while not self.ended.wait(PULSE_S):
            if not self._lock.acquire(blocking=False):
                continue  # an operation is under way, which is as good
            try:
                if not self._failure:
                    broadcast(Operation.PULSE)
                    heartbeat("cpu")  # rank 0's own device is waited for by whoever reads results
            except RuntimeError as error:
                self._fail(error)
            finally:
                self._lock.release()

    def _fail(self, error: Exception) -> None:
        deadline = time.monotonic() + EXIT_S
        while not self.workers.dead() and time.monotonic() < deadline:
            time.sleep(0.01)
        first_line = str(error).partition("\n")[0]
        self._failure = self.workers.dead() or f"a rank failed or hangs: {first_line}"
        logger.error("the ranks cannot go on: %s", self._failure)
        self._end(_abort_process_group)

    def _end(self, leave_group: Callable[[], None]) -> None:
        """After a failure the group is aborted: leaving it would wait for what never comes."""
        self.ended.set()
        self.workers.kill()
        leave_group()


def heartbeat(device: str) -> None:
    """Every rank's part of Operation.PULSE: the ranks meet once the device has done its work."""
    if device.startswith("cuda"):
        torch.cuda.synchronize(device)
    dist.all_reduce(torch.zeros(1))


def _python() -> str:
    """The server's stub embeds Python and finds it as `python3` in PATH."""
    name = os.path.basename(sys.executable or "")
    return sys.executable if name.startswith("python") else shutil.which("python3") or "python3"
