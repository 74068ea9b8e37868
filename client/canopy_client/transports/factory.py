"""The transport for an address."""

from canopy_client.address import parse_address
from canopy_client.transports.base import AsyncTransport, Connection, Transport
from canopy_client.transports.grpc import GrpcTransport
from canopy_client.transports.grpc_async import AsyncGrpcTransport
from canopy_client.transports.http import HttpTransport
from canopy_client.transports.http_async import AsyncHttpTransport


def open_transport(connection: Connection) -> Transport:
    """The protocol that the address names. Raises ValueError for an unknown one."""
    if parse_address(connection.url).protocol == "grpc":
        return GrpcTransport(connection)
    return HttpTransport(connection)


def open_async_transport(connection: Connection) -> AsyncTransport:
    """Like `open_transport`; to be called where the event loop runs."""
    if parse_address(connection.url).protocol == "grpc":
        return AsyncGrpcTransport(connection)
    return AsyncHttpTransport(connection)
