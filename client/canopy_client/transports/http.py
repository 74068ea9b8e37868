"""HTTP with server-sent events, blocking."""

import ssl
import threading
from collections.abc import Iterator
from typing import Any

import httpx2

from canopy_client.errors import Cancelled
from canopy_client.request import Request
from canopy_client.transports.base import CONTROL_TIMEOUT_S, Connection
from canopy_client.transports.http_wire import (
    EventReader,
    checked,
    error_of,
    path_of,
    read_index,
    read_model,
    to_body,
    to_client_error,
)
from canopy_client.types import Chunk, ModelInfo, ModelState, Tls

# As many answers stream at once as callers ask for.
LIMITS = httpx2.Limits(max_connections=None, max_keepalive_connections=16)


def tls_context(tls: Tls) -> ssl.SSLContext:
    """Raises OSError when a file cannot be read."""
    context = ssl.create_default_context(cafile=tls.ca_file)
    if tls.certificate_file:
        context.load_cert_chain(tls.certificate_file, tls.key_file)
    return context


def settings(connection: Connection) -> dict[str, Any]:
    """What both HTTP clients are made with."""
    return {
        "base_url": connection.url,
        "headers": dict(connection.headers),
        "verify": tls_context(connection.tls),
        "timeout": CONTROL_TIMEOUT_S,
        "limits": LIMITS,
        "trust_env": False,  # a proxy of the environment knows no loopback server
    }


class HttpCall:
    """One posted request whose events are read as they come."""

    def __init__(self, client: httpx2.Client, request: Request, timeout_s: float) -> None:
        self._client = client
        self._request = request
        self._timeout_s = timeout_s
        self._is_aborted = threading.Event()

    def __iter__(self) -> Iterator[Chunk]:
        path, body = path_of(self._request), to_body(self._request)
        reader = EventReader(self._request)
        try:
            with self._client.stream("POST", path, json=body, timeout=self._timeout_s) as response:
                if response.status_code != 200:
                    raise error_of(response.status_code, response.read())
                for data in response.iter_bytes():
                    if self._is_aborted.is_set():
                        raise Cancelled("by this client")
                    yield from reader.feed(data)
        except httpx2.TransportError as error:
            raise to_client_error(error) from error
        last = reader.end()
        if last is not None:
            yield last

    def abort(self) -> None:
        """Close the connection at the next event: a blocked read cannot be woken."""
        self._is_aborted.set()


class HttpTransport:
    """`transport.Transport` over one pool of connections."""

    def __init__(self, connection: Connection) -> None:
        self._client = httpx2.Client(**settings(connection))

    def stream(self, request: Request, timeout_s: float) -> HttpCall:
        """Start one request."""
        return HttpCall(self._client, request, timeout_s)

    def server_version(self) -> str:
        """The Triton server's version."""
        return self._ask("GET", "/v2")["version"]

    def model(self, name: str) -> ModelInfo:
        """One model's description."""
        return read_model(self._ask("GET", f"/v2/models/{name}"))

    def models(self) -> list[ModelState]:
        """Every model that the server knows of."""
        return read_index(self._ask("POST", "/v2/repository/index"))

    def close(self) -> None:
        """Close the connections; what still streams is cut off."""
        self._client.close()

    def _ask(self, method: str, path: str) -> Any:
        try:
            response = self._client.request(method, path)
        except httpx2.TransportError as error:
            raise to_client_error(error) from error
        return checked(response.status_code, response.content)
