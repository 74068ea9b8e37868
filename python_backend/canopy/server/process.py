"""One Triton server process, from its folder and memory to the last of its children."""

import ctypes
import os
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from canopy import addresses
from canopy.config import Deployment
from canopy.errors import CannotStart
from canopy.model_store.folders import canopy_home
from canopy.server.probe import Health, ask_for_token, drain, end_requests
from canopy.server.runtime import (
    MODEL_REPOSITORY,
    clean_shared_memory,
    make_backend_directory,
    require_free_ports,
    server_command,
    server_environment,
    server_folder,
    write_deployment,
)

START_TIMEOUT_S = 300.0
EXIT_TIMEOUT_S = 10.0
PROBE_TIMEOUT_S = 30.0
DRAIN_TIMEOUT_S = 2.0  # for one answer to how much is left
POLL_S = 0.1
PR_SET_PDEATHSIG = 1
# What the server dies of where its processes cannot hand on a lock of their shared memory in time,
# as when a busy machine loads its models.
_LOST_LOCK = "boost::interprocess::lock_exception"
_RUN_BYTES = 1 << 20  # room that a run wants at its start
_LIBC = ctypes.CDLL(None)  # loaded here: between fork and exec little is safe


class ServerProcess:
    """A server of the four models; as a context manager, ready inside and gone afterwards."""

    def __init__(
        self,
        deployment: Deployment,
        run_folder: Path | None = None,
        repository: Path = MODEL_REPOSITORY,
    ) -> None:
        self.deployment = deployment
        self.server = deployment.server
        self._folder = run_folder or _run_folder(self.server.grpc_port)
        self._repository = repository
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def grpc_url(self) -> str:
        """host:port"""
        return addresses.grpc_url(self.server)

    @property
    def http_url(self) -> str:
        """http://host:port"""
        return addresses.http_url(self.server)

    @property
    def metrics_url(self) -> str:
        """The address of the Prometheus text."""
        return addresses.metrics_url(self.server)

    @property
    def log_path(self) -> Path:
        """What the server and its models wrote since the last start; `.previous` has the last."""
        return self._folder / "server.log"

    @property
    def pid(self) -> int | None:
        """The leader of the server's process group, while it runs."""
        return self._process.pid if self.is_running and self._process else None

    @property
    def is_running(self) -> bool:
        """Whether the server's process lives; its models may not."""
        return self._process is not None and self._process.poll() is None

    def owns(self, pid: int) -> bool:
        """Whether a process belongs to this server."""
        try:
            return self._process is not None and os.getpgid(pid) == self._process.pid
        except ProcessLookupError:
            return False

    def start(self) -> None:
        """Launch; returns before the server is ready. Raises CannotStart."""
        if not self._repository.is_dir():
            raise CannotStart(f"there is no model repository {self._repository}")
        require_free_ports(self.server)
        clean_shared_memory(self.server)
        self._folder.mkdir(parents=True, exist_ok=True)
        if self.log_path.exists():
            self.log_path.replace(self.log_path.with_suffix(".previous.log"))
        deployment_path = self._folder.resolve() / "deployment.toml"
        write_deployment(self.deployment, deployment_path)
        backends = make_backend_directory(self._folder / "backends", server_folder(self.server))
        with self.log_path.open("wb") as log:
            self._process = subprocess.Popen(
                server_command(self.server, self._repository, backends),
                env=server_environment(deployment_path),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                preexec_fn=_die_with_parent,
            )

    def wait_until_ready(self, timeout_s: float = START_TIMEOUT_S) -> None:
        """Return once a real request was answered. Raises CannotStart with the log's end.

        A server that lost a lock while it started is launched once more.
        """
        deadline, may_launch_again = time.monotonic() + timeout_s, True
        while True:
            if not self.is_running:
                if not (may_launch_again and _LOST_LOCK in self._log()):
                    raise CannotStart(f"the server stopped while starting\n{self.log_tail()}")
                may_launch_again = False
                self.stop()
                self.start()
            result = ask_for_token(self.server, PROBE_TIMEOUT_S)
            if result.health is Health.ALIVE:
                return
            if time.monotonic() > deadline:
                raise CannotStart(
                    f"no answer within {timeout_s:g} s ({result.reason})\n{self.log_tail()}"
                )
            time.sleep(POLL_S)

    def log_tail(self, num_lines: int = 20) -> str:
        """The last lines of the log, and where it is."""
        lines = self._log().splitlines()[-num_lines:]
        return "\n".join([*lines, f"(whole log: {self.log_path})"])

    def _log(self) -> str:
        return self.log_path.read_text("utf-8", "replace")

    def drain(self, on_progress: Callable[[int], None] = lambda _: None) -> bool:
        """Stop admission and wait for the accepted requests; False when time ran out.

        What is left then is told that the server stops.
        """
        deadline = time.monotonic() + self.server.drain_timeout_s
        while time.monotonic() < deadline:
            health, num_left = drain(self.server, DRAIN_TIMEOUT_S)
            if num_left == 0:
                return True
            if health is Health.BROKEN:
                return False  # nobody is there to answer anything
            if num_left is not None:
                on_progress(num_left)
            time.sleep(POLL_S)
        end_requests(self.server, DRAIN_TIMEOUT_S)
        last_s = time.monotonic() + DRAIN_TIMEOUT_S
        while time.monotonic() < last_s and drain(self.server, DRAIN_TIMEOUT_S)[1] != 0:
            time.sleep(POLL_S)
        return False

    def stop(self, grace_s: float = EXIT_TIMEOUT_S) -> None:
        """SIGTERM, then SIGKILL of what the process group still holds; frees the memory."""
        if self._process is None:
            return
        try:
            self._process.terminate()
            self._process.wait(timeout=grace_s)
        except subprocess.TimeoutExpired:
            pass
        finally:
            _kill_group(self._process.pid)
            self._process.wait()
            clean_shared_memory(self.server)

    def __enter__(self) -> "ServerProcess":
        self.start()
        try:
            self.wait_until_ready()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()


def _run_folder(port: int) -> Path:
    """Under Canopy's home, or a temporary one where nothing can be written there."""
    folder = canopy_home() / "run" / str(port)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder) as probe:
            probe.write(bytes(_RUN_BYTES))
    except OSError:
        return Path(tempfile.mkdtemp(prefix=f"canopy-{port}-"))
    return folder


def _kill_group(group: int) -> None:
    try:
        os.killpg(group, signal.SIGKILL)
    except ProcessLookupError:
        return


def _die_with_parent() -> None:
    """A supervisor that is killed outright takes its server along."""
    _LIBC.prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
