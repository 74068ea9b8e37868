"""The client's bytes are the ones that tritonclient would send and read."""

import json

import numpy as np
import pytest
import tritonclient.grpc as triton
from hypothesis import given
from hypothesis import strategies as st
from tritonclient.grpc import service_pb2
from tritonclient.utils import serialize_byte_tensor

from canopy_client import Cancelled, InvalidRequest, ServerFailure, Unavailable
from canopy_client.address import parse_address
from canopy_client.answer import Answer, joined
from canopy_client.errors import error_from_text
from canopy_client.request import generation
from canopy_client.transports.grpc_wire import StreamReader, read_chunk, to_message
from canopy_client.transports.http_wire import EventReader
from canopy_client.types import Chunk

texts = st.text(st.characters(exclude_categories=["Cs"]))


@given(texts)
def test_strings_are_framed_as_tritonclient_frames_them(text):
    request = to_message(generation("canopy", text, None, {}))
    tensor = triton.InferInput("text_input", [1], "BYTES")
    tensor.set_data_from_numpy(np.array([text.encode()], np.object_))
    assert request.inputs[0] == tensor._get_tensor()
    assert request.raw_input_contents[0] == tensor._get_content()


@given(texts, st.integers(0, 2**32 - 1))
def test_responses_read_back_as_they_were_written(text, count):
    response = service_pb2.ModelInferResponse()
    for name, value in {"text_output": text, "finish_reason": "stop"}.items():
        response.outputs.add(name=name, datatype="BYTES", shape=[1])
        raw = serialize_byte_tensor(np.array([value.encode()], np.object_)).item()
        response.raw_output_contents.append(raw)
    response.outputs.add(name="num_output_tokens", datatype="UINT32", shape=[1])
    response.raw_output_contents.append(np.array([count], np.uint32).tobytes())
    response.parameters["triton_final_response"].bool_param = True
    chunk = read_chunk(response)
    assert (chunk.text, chunk.num_tokens, chunk.finish_reason) == (text, count, "stop")
    assert chunk.is_last


def test_a_trace_is_read_and_none_is_an_empty_one():
    response = service_pb2.ModelInferResponse()
    assert list(read_chunk(response).rounds) == []
    response.outputs.add(name="trace", datatype="BYTES", shape=[1])
    text = json.dumps([{"round": 1, "texts": ["ä"]}]).encode()
    raw = serialize_byte_tensor(np.array([text], np.object_)).item()
    response.raw_output_contents.append(raw)
    assert read_chunk(response).rounds == [{"round": 1, "texts": ["ä"]}]


def test_options_travel_as_json_and_unset_inputs_are_not_sent():
    request = to_message(
        generation("canopy", None, [{"role": "user", "content": "hi"}], {"top_k": 3})
    )
    sent = dict(zip((i.name for i in request.inputs), request.raw_input_contents, strict=True))
    assert "text_input" not in sent
    assert json.loads(sent["sampling_parameters"][4:]) == {"top_k": 3}
    assert "sampling_parameters" not in {
        tensor.name for tensor in to_message(generation("canopy", "x", None, {})).inputs
    }


def test_a_completion_is_the_sum_of_its_chunks():
    chunks = [
        Chunk("a", 1, 5, None, None, False),
        Chunk("b", 3, 5, "stop", {"rounds": 2}, True),
    ]
    answer = Answer()
    assert (answer.completion.text, answer.has_ended) == ("", False)
    for chunk in chunks:
        answer.take(chunk)
    completion = answer.completion
    assert (completion.text, completion.num_input_tokens, completion.num_output_tokens) == (
        "ab",
        5,
        4,
    )
    assert (completion.finish_reason, completion.speculation) == ("stop", {"rounds": 2})
    assert answer.has_ended


def test_neighboring_chunks_joined_say_what_both_said():
    first = Chunk("a", 1, 5, None, None, False, ({"round": 1},))
    second = Chunk("b", 3, 5, "stop", {"rounds": 2}, True, ({"round": 2},))
    both = Chunk("ab", 4, 5, "stop", {"rounds": 2}, True, ({"round": 1}, {"round": 2}))
    assert joined(first, second) == both


@pytest.mark.parametrize(
    ("text", "kind", "message"),
    [
        ("[invalid_argument] top_p must be", InvalidRequest, "top_p must be"),
        ("[unavailable] full", Unavailable, "full"),
        ("[cancelled] gone", Cancelled, "gone"),
        ("[internal] verifier: died", ServerFailure, "verifier: died"),
        ("[unheard_of] x", ServerFailure, "x"),
        ("Stub process 'x' is not healthy.", ServerFailure, "Stub process 'x' is not healthy."),
    ],
)
def test_errors_are_told_apart_by_their_code(text, kind, message):
    error = error_from_text(text)
    assert type(error) is kind
    assert str(error) == message


def streamed(text="", error="", is_last=False):
    response = service_pb2.ModelStreamInferResponse(error_message=error)
    if text:
        response.infer_response.outputs.add(name="text_output", datatype="BYTES", shape=[1])
        raw = serialize_byte_tensor(np.array([text.encode()], np.object_)).item()
        response.infer_response.raw_output_contents.append(raw)
    response.infer_response.parameters["triton_final_response"].bool_param = is_last
    return response


def test_an_error_is_raised_when_the_stream_has_ended_and_not_before():
    reader = StreamReader()
    responses = [streamed("a"), streamed(error="[cancelled] gone"), streamed("b", is_last=True)]
    assert [c.text for response in responses for c in reader.feed(response)] == ["a"]
    with pytest.raises(Cancelled, match="gone"):
        reader.end()


def test_a_stream_without_a_last_response_was_cut_short():
    reader = StreamReader()
    assert [chunk.text for chunk in reader.feed(streamed("a"))] == ["a"]
    with pytest.raises(ServerFailure, match="before the answer did"):
        reader.end()


@given(st.lists(texts, max_size=4), st.integers(1, 9))
def test_events_are_read_however_the_bytes_are_cut(pieces, size):
    request = generation("canopy", "x", None, {})
    events = [{"text_output": text, "finish_reason": "None"} for text in pieces]
    events.append({"text_output": "", "finish_reason": "stop"})
    data = "".join(f"data: {json.dumps(e, ensure_ascii=False)}\n\n" for e in events).encode()
    reader = EventReader(request)
    cut = [data[index : index + size] for index in range(0, len(data), size)]
    chunks = [chunk for part in cut for chunk in reader.feed(part)]
    assert [chunk.text for chunk in chunks] == [*pieces, ""]
    assert [chunk.is_last for chunk in chunks] == [False] * len(pieces) + [True]
    assert reader.end() is None


@pytest.mark.parametrize("url", ["::1:8001", "http://::1:8000"])
def test_an_ipv6_address_without_brackets_is_told_to_take_some(url):
    with pytest.raises(ValueError, match="brackets"):
        parse_address(url)
    assert parse_address("[::1]:8001").target == "[::1]:8001"
