"""Ways to decode, by request, on one real server: who is asked what, and what came of it."""

import itertools
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from bench.harness.prompts import Prompt
from bench.harness.server_metrics import scrape
from canopy.config import Deployment
from canopy.server.process import ServerProcess
from canopy.server.runtime import with_free_ports
from canopy_client import Client, ClientError, Completion

# A static tree of three children a node needs 3 + 9 + 27 + 81 nodes for its four levels.
UNIFORM_NODES = 120
_UNIFORM_BRANCH = 3
_SEED = 0  # in coupled mode it decides the text together with the prompt


@dataclass(frozen=True)
class ServedArm:
    """The request parameters that make the difference."""

    name: str
    speculation: str
    node_budget: int = 0
    temperature: float = 0.0

    @property
    def parameters(self) -> dict[str, Any]:
        if self.speculation == "off":
            return {"speculation": "off"}
        return {"speculation": self.speculation, "node_budget": self.node_budget}


@contextmanager
def served(deployment: Deployment) -> Iterator[ServerProcess]:
    """A server on free ports whose limits leave room for every arm. Raises CannotStart."""
    deployment = replace(
        with_free_ports(deployment),
        tree=replace(deployment.tree, uniform_branch=_UNIFORM_BRANCH),
        drafter=replace(deployment.drafter, max_nodes=UNIFORM_NODES),
    )
    with TemporaryDirectory() as folder, ServerProcess(deployment, Path(folder)) as server:
        yield server


def ask(client: Client, prompt: str, arm: ServedArm, max_tokens: int) -> Completion:
    """One answer to its natural end, which is the same in every arm of its temperature."""
    return client.chat(
        prompt, temperature=arm.temperature, seed=_SEED, max_tokens=max_tokens, **arm.parameters
    )


@dataclass
class LoadGenerator:
    """Streams that are always busy: each asks again as soon as it was answered."""

    server: ServerProcess
    arm: ServedArm
    prompts: Sequence[Prompt]
    max_tokens: int
    received: list[tuple[float, int]] = field(default_factory=list)  # time, tokens
    errors: list[ClientError] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._next = iter(itertools.cycle(self.prompts))
        self._lock = threading.Lock()
        self._stops: list[threading.Event] = []
        self._threads: list[threading.Thread] = []

    def resize(self, num_streams: int) -> None:
        """Start streams, or have the youngest give up their answers."""
        while len(self._stops) < num_streams:
            stop = threading.Event()
            thread = threading.Thread(target=self._ask_for_ever, args=(stop,), daemon=True)
            self._stops.append(stop)
            self._threads.append(thread)
            thread.start()
        for stop in self._stops[num_streams:]:
            stop.set()
        del self._stops[num_streams:]

    def close(self) -> None:
        """Stop all. Raises the first error that a stream met."""
        self.resize(0)
        for thread in self._threads:
            thread.join()
        if self.errors:
            raise self.errors[0]

    def goodput(self, start_s: float, end_s: float) -> float:
        """Tokens a second that arrived between two times of time.perf_counter()."""
        with self._lock:
            tokens = sum(num for at, num in self.received if start_s <= at < end_s)
        return tokens / (end_s - start_s)

    def _ask_for_ever(self, stop: threading.Event) -> None:
        try:
            with Client(self.server.grpc_url) as client:
                while not stop.is_set():
                    self._ask(client, stop)
        except ClientError as error:
            self.errors.append(error)

    def _ask(self, client: Client, stop: threading.Event) -> None:
        with self._lock:
            prompt = next(self._next)
        with client.stream_chat(
            prompt.text,
            temperature=0.0,
            max_tokens=self.max_tokens,
            ignore_eos=True,
            **self.arm.parameters,
        ) as stream:
            for chunk in stream:
                with self._lock:
                    self.received.append((time.perf_counter(), chunk.num_tokens))
                if stop.is_set():
                    return


def wait_until_idle(server: ServerProcess, timeout_s: float = 10.0) -> None:
    """Return once nothing runs or waits, or the time is up."""
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        with suppress(OSError):
            page = scrape(server.metrics_url)
            names = ("canopy_running_sequences", "canopy_waiting_sequences")
            if sum(page.total(name) for name in names) == 0:
                return
        time.sleep(0.05)
