"""Client of a Canopy server: text in, text out or streamed, over gRPC.

    with Client("127.0.0.1:8001") as client:
        print(client.chat("Write a haiku about rivers").text)

Depends on the wire format alone, never on the server's code.
"""

from canopy_client.client import Client, Health, TextStream
from canopy_client.errors import (
    Cancelled,
    ClientError,
    InvalidRequest,
    ServerFailure,
    TimedOut,
    Unavailable,
)
from canopy_client.wire import Chunk, Completion, SamplingOptions

__all__ = [
    "Cancelled",
    "Chunk",
    "Client",
    "ClientError",
    "Completion",
    "Health",
    "InvalidRequest",
    "SamplingOptions",
    "ServerFailure",
    "TextStream",
    "TimedOut",
    "Unavailable",
]
