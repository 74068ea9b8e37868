"""Where a deployment's server listens, and how this machine's own processes ask it.

server.host      bound and asked as                      URLs
name             its IPv4 address, or its IPv6 one       name:port
127.0.0.1        itself                                  127.0.0.1:port
::1              itself                                  [::1]:port
"""

import socket
import urllib.request

from canopy.config import ServerConfig
from canopy.errors import CannotStart

# The server is this machine's own: no proxy of the environment stands before it.
open_directly = urllib.request.build_opener(urllib.request.ProxyHandler({})).open


def url_host(server: ServerConfig) -> str:
    """The host as URLs have it: an IPv6 address stands in brackets."""
    return f"[{server.host}]" if ":" in server.host else server.host


def http_url(server: ServerConfig) -> str:
    """http://host:port"""
    return f"http://{url_host(server)}:{server.http_port}"


def grpc_url(server: ServerConfig) -> str:
    """host:port"""
    return f"{url_host(server)}:{server.grpc_port}"


def metrics_url(server: ServerConfig) -> str:
    """The address of the Prometheus text."""
    return f"http://{url_host(server)}:{server.metrics_port}/metrics"


def bindable(server: ServerConfig) -> tuple[socket.AddressFamily, str]:
    """Family and numeric address of the host, of IPv4 if it has one: Triton resolves no names.

    Raises CannotStart.
    """
    try:
        found = socket.getaddrinfo(server.host, None, type=socket.SOCK_STREAM)
    except OSError as error:
        raise CannotStart(f"server.host = {server.host!r} cannot be resolved: {error}") from error
    found.sort(key=lambda entry: entry[0] != socket.AF_INET)
    return found[0][0], str(found[0][4][0])


def as_option(protocol: str, address: str) -> str:
    """An address as the server's options want it: each protocol's library in its own way."""
    if ":" not in address:
        return address
    return f"[{address}]" if protocol == "grpc" else f"ipv6:{address}"
