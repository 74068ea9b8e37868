"""Blocking or asynchronous, gRPC or HTTP: the same answers, errors and effects."""

import time

import pytest
from every_way import Asynchronous, Blocking
from plain_model import NAME as PLAIN
from toy_service import ENDLESS, WORD_S, becomes_idle

from canopy_client import (
    NO_RETRY,
    Cancelled,
    Client,
    InvalidRequest,
    Retry,
    ServerFailure,
    TimedOut,
    Unavailable,
    UnknownModel,
)

pytestmark = pytest.mark.server


@pytest.fixture(params=[Blocking, Asynchronous])
def make(request):
    return request.param


@pytest.fixture(params=["grpc", "http"])
def address(request, toy_server):
    return f"grpc://{toy_server.grpc_url}" if request.param == "grpc" else toy_server.http_url


@pytest.fixture
def way(make, address):
    return make(address, timeout_s=20.0)


def test_an_answer_is_the_same_every_way(way, client):
    options = {"temperature": 0.0, "seed": 2**64 - 1, "stop": ["x", "ÿ"]}
    text = "one twö 三\u2028four\x85five"
    expected = client.generate(text, **options)
    assert way.call("generate", text, **options) == expected
    assert expected.text.split() == text.split()
    assert expected.speculation == options


def test_a_stream_has_the_same_pieces_every_way(way, client):
    with client.stream("one two three") as stream:
        expected = list(stream)
    assert way.stream("one two three") == (expected, stream.completion)


def test_a_chat_is_the_same_every_way(way):
    history = [{"role": "assistant", "content": "b"}, {"role": "user", "content": "c d"}]
    assert way.call("chat", history).text == "c d "


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("[invalid_argument] top_p must be", InvalidRequest),
        ("[unavailable] full", Unavailable),
        ("[cancelled] gone", Cancelled),
        ("[internal] died", ServerFailure),
    ],
)
def test_an_error_is_the_same_every_way(make, address, text, kind):
    way = make(address, retry=NO_RETRY)
    with pytest.raises(kind) as caught:
        way.call("generate", text)
    assert type(caught.value) is kind
    assert str(caught.value) == text.partition("] ")[2]


def test_leaving_early_cancels_every_way(way, toy_server):
    chunks, completion = way.stream(ENDLESS, num_chunks=2)
    assert [chunk.text for chunk in chunks] == ["word ", "word "]
    assert completion.text.startswith("word word ")
    assert becomes_idle(toy_server.server)


def test_an_answer_that_takes_too_long_times_out_every_way(make, address, toy_server):
    start = time.monotonic()
    with pytest.raises(TimedOut):
        make(address, timeout_s=0.4).call("generate", ENDLESS)
    assert time.monotonic() - start < 4000 * WORD_S / 2


def test_an_unknown_model_is_told_every_way(make, address):
    with pytest.raises(UnknownModel):
        make(address, model="nobody").call("generate", "x")


def test_the_server_describes_itself_the_same_every_way(way, client):
    info = way.call("model_info")
    assert info == client.model_info()
    assert (info.name, "messages" in info.inputs) == ("canopy", True)
    assert way.call("describe")["defaults"]["temperature"] == 0.2
    assert {(m.name, m.state) for m in way.call("models")} == {
        ("canopy", "READY"),
        (PLAIN, "READY"),
    }
    assert way.call("health").server_version == client.health().server_version


def test_any_model_of_the_vllm_contract_will_do(make, address):
    way = make(address, model=PLAIN)
    chunks, completion = way.stream("one two three")
    assert "".join(chunk.text for chunk in chunks) == completion.text == "one two three "
    assert (completion.finish_reason, completion.num_output_tokens) == ("", 0)
    assert way.call("health").latency_ms > 0
    with pytest.raises(InvalidRequest, match="takes no messages"):
        way.call("chat", "hello")


def test_a_model_without_control_messages_is_cancelled_on_the_wire(make, address):
    start = time.monotonic()
    make(address, model=PLAIN).stream(ENDLESS, num_chunks=2)
    assert time.monotonic() - start < 4000 * WORD_S / 2


@pytest.mark.parametrize("protocol", ["grpc", "http"])
def test_nobody_there_is_asked_again_with_growing_pauses(make, protocol):
    way = make(f"{protocol}://127.0.0.1:1", retry=Retry(num_retries=2, first_wait_s=0.1))
    start = time.monotonic()
    with pytest.raises(Unavailable, match="cannot be reached"):
        way.call("generate", "x")
    assert time.monotonic() - start >= 0.1 + 0.2


def test_a_server_that_comes_late_is_found(toy_server, make, free_port, relay):
    way = make(f"127.0.0.1:{free_port}", retry=Retry(num_retries=40, first_wait_s=0.1, growth=1.0))
    with relay(free_port, toy_server.grpc_url, delay_s=0.3):
        assert way.call("generate", "at last").text == "at last "


@pytest.mark.parametrize("url", ["ftp://x:1", "grpc://", "http://x:1/path"])
def test_a_malformed_address_is_refused(url):
    with pytest.raises(ValueError, match=url):
        Client(url)
