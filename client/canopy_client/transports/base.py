"""What a client needs of a connection, blocking and asynchronous; two protocols offer it.

Every method raises a ClientError where it fails. `stream` raises nothing by itself: its iteration
does.
"""

from collections.abc import AsyncIterator, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from canopy_client.request import Request
from canopy_client.types import Chunk, ModelInfo, ModelState, Tls

CONTROL_TIMEOUT_S = 10.0
GIVE_UP_S = 2.0  # for the service to hear of a cancel, and again for the stream to end


@dataclass(frozen=True)
class Connection:
    """Where to connect, and what goes with every call."""

    url: str
    headers: Mapping[str, str] = field(default_factory=dict)
    tls: Tls = Tls()


class Call(Protocol):
    """One request under way: iterate over it on one thread, cut it off from any."""

    def __iter__(self) -> Iterator[Chunk]: ...

    def abort(self) -> None:
        """Cut the connection; the iteration ends with an error, at the next piece at the latest."""
        ...


class Transport(Protocol):
    """Blocking."""

    def stream(self, request: Request, timeout_s: float) -> Call: ...

    def server_version(self) -> str: ...

    def model(self, name: str) -> ModelInfo: ...

    def models(self) -> list[ModelState]: ...

    def close(self) -> None: ...


class AsyncTransport(Protocol):
    """Asynchronous; a task that is cancelled inside `stream` cuts its connection."""

    def stream(self, request: Request, timeout_s: float) -> AsyncIterator[Chunk]: ...

    async def server_version(self) -> str: ...

    async def model(self, name: str) -> ModelInfo: ...

    async def models(self) -> list[ModelState]: ...

    async def close(self) -> None: ...
