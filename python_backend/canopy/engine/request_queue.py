"""The requests that the engine has accepted: those that run, those that wait, and room for more."""

import threading
import time
from collections import deque
from dataclasses import dataclass

from canopy.config import LimitsConfig
from canopy.costs.cost_model import DEFAULT_COST_MODEL, CostModel
from canopy.engine.health import Load
from canopy.engine.metrics import EngineMetrics
from canopy.engine.request import EngineSequence
from canopy.errors import Unavailable

SHUTTING_DOWN = Unavailable("the server is shutting down: send the request elsewhere")


@dataclass(frozen=True)
class EngineLimits:
    """What the engine takes on at once; see config.LimitsConfig and config.CacheConfig."""

    max_running: int
    max_waiting: int
    num_blocks: int
    block_size: int
    max_step_tokens: int = LimitsConfig.max_step_tokens
    max_prompt_slowdown: float = 0.0
    cost_model: CostModel = DEFAULT_COST_MODEL


class Reservation:
    """A place for a request whose prompt is still being read. `add` takes it, or `release` does."""

    def __init__(self, queue: "RequestQueue") -> None:
        self._queue = queue
        self.arrived_s = time.monotonic()

    @property
    def is_held(self) -> bool:
        """Not taken, given back or lost since the engine ended."""
        return self._queue.holds(self)

    def release(self) -> None:
        """Give the place back; nothing happens where it was taken."""
        self._queue.release(self)


class RequestQueue:
    """What stands above `wait` may be called from any thread, the rest belongs to the engine's."""

    def __init__(self, limits: EngineLimits, metrics: EngineMetrics) -> None:
        self.running: list[EngineSequence] = []  # oldest first
        self.is_draining = False
        self._waiting: deque[EngineSequence] = deque()  # preempted ones stand in front
        self._reserved: set[Reservation] = set()
        self._open: set[EngineSequence] = set()  # accepted, and not answered to their end
        self._limits = limits
        self._metrics = metrics
        self._changed = threading.Condition()

    def __len__(self) -> int:
        return len(self.running) + len(self._waiting)

    @property
    def num_waiting(self) -> int:
        return len(self._waiting)

    @property
    def sequences(self) -> list[EngineSequence]:
        """All of them, those that run first."""
        with self._changed:
            return [*self.running, *self._waiting]

    def reserve(self) -> Reservation:
        """A place for one request. Raises Unavailable when there is none, or none any more."""
        with self._changed:
            if self.is_draining:
                raise SHUTTING_DOWN
            if self._num_places <= 0:
                raise Unavailable(
                    f"{len(self.running)} requests run and {self._num_held_up} wait already: "
                    "retry later"
                )
            reservation = Reservation(self)
            self._reserved.add(reservation)
            return reservation

    def add(self, sequence: EngineSequence, reservation: Reservation) -> None:
        """Queue a sequence at its place. Raises Unavailable when the engine has ended meanwhile."""
        with self._changed:
            if reservation not in self._reserved:
                raise SHUTTING_DOWN
            self._reserved.remove(reservation)
            self._metrics.num_requests += 1
            self._open.add(sequence)
            self._waiting.append(sequence)
            self._changed.notify()

    def holds(self, reservation: Reservation) -> bool:
        with self._changed:
            return reservation in self._reserved

    def release(self, reservation: Reservation) -> None:
        with self._changed:
            self._reserved.discard(reservation)

    def drain(self) -> None:
        """Accept nothing more."""
        with self._changed:
            self.is_draining = True
            self._changed.notify()

    def close(self) -> None:
        """Accept nothing more, not even what is being read."""
        self.drain()
        with self._changed:
            self._reserved.clear()

    def load(self) -> Load:
        """What is held now; a request is left until its last response is on its way."""
        with self._changed:
            return Load(
                num_left=len(self._open) + len(self._reserved),
                num_running=len(self.running),
                num_waiting=self._num_held_up,
                num_places=self._num_places,
                is_draining=self.is_draining,
            )

    @property
    def _num_places(self) -> int:
        num_held = len(self.running) + self._num_held_up
        return self._limits.max_running + self._limits.max_waiting - num_held

    @property
    def _num_held_up(self) -> int:
        """Requests that wait, for their prompt to be read or for room in a step."""
        return len(self._waiting) + len(self._reserved)

    # For the engine's thread

    def wait(self, timeout_s: float) -> None:
        """Return when a sequence was added, or draining began, or after the timeout."""
        with self._changed:
            if not len(self):
                self._changed.wait(timeout_s)

    def admit(self) -> None:
        """Move waiting sequences in while the cache has room for them and for one block each.

        A sequence alone is always admitted: it was checked to fit into the whole cache.
        """
        size = self._limits.block_size
        promised = sum(len(s.token_ids) // size + 1 for s in self.running if not s.is_prefilled)
        room = self._metrics.free_blocks - promised
        with self._changed:
            while self._waiting and len(self.running) < self._limits.max_running:
                need = len(self._waiting[0].token_ids) // size + 1
                if self.running and room < need + len(self.running):
                    break
                room -= need
                self._metrics.record_admission(self._waiting[0])
                self.running.append(self._waiting.popleft())

    def preempt(self, sequence: EngineSequence) -> None:
        """Back to the front of the queue."""
        with self._changed:
            self.running.remove(sequence)
            self._waiting.appendleft(sequence)

    def drop(self, sequence: EngineSequence) -> None:
        """It neither runs nor waits; it is left until `end`."""
        with self._changed:
            for place in (self.running, self._waiting):
                if sequence in place:
                    place.remove(sequence)

    def end(self, sequence: EngineSequence) -> None:
        """Its last response is on its way."""
        with self._changed:
            self._open.discard(sequence)
