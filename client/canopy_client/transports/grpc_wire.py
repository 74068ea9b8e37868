"""gRPC messages of the server's streamed inference, to and from Python values.

A BYTES element is its length as a little-endian uint32 and its bytes; every tensor holds one.
"""

import struct
from collections.abc import Iterator
from typing import Any

import grpc
from tritonclient.grpc import service_pb2

from canopy_client.answer import chunk_of, cut_short
from canopy_client.errors import (
    Cancelled,
    ClientError,
    ServerFailure,
    TimedOut,
    Unavailable,
    UnknownModel,
    error_from_text,
)
from canopy_client.request import Request
from canopy_client.types import Chunk, ModelInfo, ModelState


def to_message(request: Request) -> service_pb2.ModelInferRequest:
    """The request as one message of a stream; its answer ends with a response marked final."""
    message = service_pb2.ModelInferRequest(model_name=request.model, id=request.id)
    message.parameters["triton_enable_empty_final_response"].bool_param = True
    for name, value in request.inputs.items():
        is_flag = isinstance(value, bool)
        message.inputs.add(name=name, datatype="BOOL" if is_flag else "BYTES", shape=[1])
        message.raw_input_contents.append(_raw(value))
    return message


def _raw(value: str | bool) -> bytes:
    if isinstance(value, bool):
        return bytes([value])
    data = value.encode("utf-8")
    return struct.pack("<I", len(data)) + data


class StreamReader:
    """Turns the responses of one stream into chunks.

    An error is raised at the end of the stream, not where it stands: a call that is dropped before
    its end is cancelled, and a cancel there can make the server leak the request or abort.
    """

    def __init__(self) -> None:
        self._failure: ClientError | None = None
        self._has_ended = False

    def feed(self, response: service_pb2.ModelStreamInferResponse) -> Iterator[Chunk]:
        """The chunk of a response; none where it is an error, or comes after one."""
        if response.error_message and self._failure is None:
            self._failure = error_from_text(response.error_message)
        if self._failure is None:
            chunk = read_chunk(response.infer_response)
            self._has_ended |= chunk.is_last
            yield chunk

    def end(self) -> None:
        """Raises the error that came, or ServerFailure when the answer is not whole."""
        if self._failure is not None:
            raise self._failure
        if not self._has_ended:
            raise cut_short()


def read_chunk(response: service_pb2.ModelInferResponse) -> Chunk:
    """One response as a Chunk; an empty final response is a Chunk without text."""
    outputs = {
        output.name: _value(output.datatype, raw)
        for output, raw in zip(response.outputs, response.raw_output_contents, strict=True)
    }
    return chunk_of(outputs, response.parameters["triton_final_response"].bool_param)


def _value(datatype: str, raw: bytes) -> Any:
    if datatype == "INT32":
        return struct.unpack(f"<{len(raw) // 4}i", raw)
    if datatype == "UINT32":
        return struct.unpack("<I", raw)[0]
    return raw[4:].decode("utf-8")


def read_model(metadata: service_pb2.ModelMetadataResponse) -> ModelInfo:
    """A model's description."""
    return ModelInfo(
        name=metadata.name,
        versions=tuple(metadata.versions),
        platform=metadata.platform,
        inputs=tuple(tensor.name for tensor in metadata.inputs),
        outputs=tuple(tensor.name for tensor in metadata.outputs),
    )


def read_index(index: service_pb2.RepositoryIndexResponse) -> list[ModelState]:
    """The server's list of models."""
    return [ModelState(m.name, m.version, m.state, m.reason) for m in index.models]


def to_client_error(error: grpc.RpcError) -> ClientError:
    """RpcErrors of a call also carry `code()` and `details()`."""
    code, details = error.code(), str(error.details())
    if code is grpc.StatusCode.DEADLINE_EXCEEDED:
        return TimedOut("no end of the answer within the client's timeout")
    if code is grpc.StatusCode.UNAVAILABLE:
        return Unavailable(f"the server cannot be reached: {details}")
    if code is grpc.StatusCode.CANCELLED:
        return Cancelled(details)
    if code is grpc.StatusCode.NOT_FOUND:
        return UnknownModel(details)
    return ServerFailure(details)
