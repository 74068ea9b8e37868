"""Client of a Canopy server: text in, text out or streamed, over gRPC or HTTP.

    with Client("127.0.0.1:8001") as client:
        print(client.chat("Name three rivers.").text)

    async with AsyncClient("http://127.0.0.1:8000") as client:
        async with client.stream("The capital of France is") as stream:
            async for chunk in stream:
                print(chunk.text, end="")

Any Triton server whose model takes the vLLM backend's inputs will do; `model` names it. What is
pure comes first, and imports go up this list:

    client, async_client          what callers see
    stream, async_stream          one answer: deadline, cancel, retry
    session, async_session        one model over one transport
    *_transport                   gRPC and HTTP, blocking and asynchronous
    request, answer, *_wire       pure: from values to messages and back
    types, errors, address
"""

from canopy_client.async_client import AsyncClient
from canopy_client.async_stream import AsyncTextStream
from canopy_client.client import Client
from canopy_client.errors import (
    Cancelled,
    ClientError,
    ContextLengthExceeded,
    InvalidRequest,
    ServerFailure,
    TimedOut,
    Unavailable,
    UnknownModel,
)
from canopy_client.stream import TextStream
from canopy_client.types import (
    NO_RETRY,
    Chunk,
    Completion,
    Health,
    ModelInfo,
    ModelState,
    Retry,
    SamplingOptions,
    Tls,
)

__all__ = [
    "NO_RETRY",
    "AsyncClient",
    "AsyncTextStream",
    "Cancelled",
    "Chunk",
    "Client",
    "ClientError",
    "Completion",
    "ContextLengthExceeded",
    "Health",
    "InvalidRequest",
    "ModelInfo",
    "ModelState",
    "Retry",
    "SamplingOptions",
    "ServerFailure",
    "TextStream",
    "TimedOut",
    "Tls",
    "Unavailable",
    "UnknownModel",
]
