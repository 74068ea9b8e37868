"""The wire format: tensors of the model `canopy`, to and from Python values.

A BYTES element is its length as a little-endian uint32 and its bytes; every tensor holds one.
"""

import json
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypedDict

from tritonclient.grpc import service_pb2

MODEL = "canopy"
_RETURNED = ("finish_reason", "num_input_tokens", "num_output_tokens")


class SamplingOptions(TypedDict, total=False):
    """How to sample, and how to speculate; what is left out is the server's default."""

    temperature: float  # 0 = greedy
    top_k: int
    top_p: float
    min_p: float
    seed: int
    max_tokens: int
    min_tokens: int
    stop: Sequence[str]
    stop_token_ids: Sequence[int]
    ignore_eos: bool
    speculation: str  # "off" or a policy's name
    node_budget: int
    acceptance: str
    trace: bool  # every chunk tells the rounds since the last one


@dataclass(frozen=True)
class Chunk:
    """One piece of a streamed answer."""

    text: str
    num_tokens: int
    num_input_tokens: int
    finish_reason: str | None  # with the last piece: "stop" or "length"
    speculation: dict[str, Any] | None  # with the last piece
    is_last: bool
    rounds: Sequence[dict[str, Any]] = ()  # with `trace`: each round's draft tree and its fate


@dataclass(frozen=True)
class Completion:
    """A whole answer."""

    text: str
    finish_reason: str
    num_input_tokens: int
    num_output_tokens: int
    speculation: dict[str, Any]


def generation_request(
    text: str | None,
    messages: Sequence[Mapping[str, Any]] | None,
    options: Mapping[str, Any],
    request_id: str,
) -> service_pb2.ModelInferRequest:
    """A streamed request for a continuation of `text`, or for the next turn of a chat."""
    request = service_pb2.ModelInferRequest(model_name=MODEL, id=request_id)
    request.parameters["triton_enable_empty_final_response"].bool_param = True
    if text is not None:
        _add_string(request, "text_input", text)
    if messages is not None:
        _add_string(request, "messages", json.dumps(list(messages)))
    if options:
        _add_string(request, "sampling_parameters", json.dumps(dict(options)))
    for name in ("stream", *(f"return_{name}" for name in _RETURNED)):
        request.inputs.add(name=name, datatype="BOOL", shape=[1])
        request.raw_input_contents.append(b"\x01")
    return request


def control_request(operation: Mapping[str, Any]) -> service_pb2.ModelInferRequest:
    """A message to the service itself, such as {"op": "cancel", "request_id": ...}."""
    request = service_pb2.ModelInferRequest(model_name=MODEL)
    _add_string(request, "control", json.dumps(dict(operation)))
    return request


def _add_string(request: service_pb2.ModelInferRequest, name: str, text: str) -> None:
    data = text.encode("utf-8")
    request.inputs.add(name=name, datatype="BYTES", shape=[1])
    request.raw_input_contents.append(struct.pack("<I", len(data)) + data)


def read_chunk(response: service_pb2.ModelInferResponse) -> Chunk:
    """One response as a Chunk; an empty final response is a Chunk without text."""
    values = {
        output.name: _value(output.datatype, raw)
        for output, raw in zip(response.outputs, response.raw_output_contents, strict=True)
    }
    reason = values.get("finish_reason", "None")
    report = values.get("speculation")
    return Chunk(
        text=values.get("text_output", ""),
        num_tokens=values.get("num_output_tokens", 0),
        num_input_tokens=values.get("num_input_tokens", 0),
        finish_reason=None if reason == "None" else reason,
        speculation=None if report is None else json.loads(report),
        rounds=json.loads(values.get("trace", "[]")),
        is_last=response.parameters["triton_final_response"].bool_param,
    )


def _value(datatype: str, raw: bytes) -> Any:
    if datatype == "UINT32":
        return struct.unpack("<I", raw)[0]
    return raw[4:].decode("utf-8")


def join_chunks(chunks: Sequence[Chunk]) -> Completion:
    """The whole answer of a stream that has ended."""
    return Completion(
        text="".join(chunk.text for chunk in chunks),
        finish_reason=next((c.finish_reason for c in reversed(chunks) if c.finish_reason), ""),
        num_input_tokens=max((chunk.num_input_tokens for chunk in chunks), default=0),
        num_output_tokens=sum(chunk.num_tokens for chunk in chunks),
        speculation=next((c.speculation for c in reversed(chunks) if c.speculation), {}),
    )
