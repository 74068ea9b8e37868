"""A gateway on a free port, in a thread of the test's own process."""

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from canopy_gateway import GatewaySettings
from canopy_gateway.server import GatewayServer


@contextmanager
def gateway(settings: GatewaySettings) -> Iterator[str]:
    """The base URL, without a path."""
    listener = socket.create_server(("127.0.0.1", 0))
    server = GatewayServer(settings)
    thread = threading.Thread(target=server.run, args=([listener],), daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join(timeout=20)
        listener.close()
    assert not thread.is_alive()
