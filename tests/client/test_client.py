"""The client against a real server."""

import threading

import pytest
from toy_service import ENDLESS, becomes_idle

from canopy_client import Cancelled, Client, InvalidRequest, TimedOut, Unavailable

pytestmark = pytest.mark.server


def test_a_stream_is_the_completion_in_pieces(client):
    whole = client.generate("one two three", temperature=0.0, seed=2**64 - 1)
    with client.stream("one two three", temperature=0.0, seed=2**64 - 1) as stream:
        pieces = [chunk.text for chunk in stream]
    assert pieces == ["one ", "two ", "three "]
    assert stream.completion == whole
    assert (whole.finish_reason, whole.num_input_tokens, whole.num_output_tokens) == (
        "length",
        7,
        3,
    )
    assert whole.speculation == {"temperature": 0.0, "seed": 2**64 - 1}


def test_a_chat_takes_one_message_or_all(client):
    assert client.chat("hello there").text == "hello there "
    history = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]
    assert client.chat([*history, {"role": "user", "content": "c d"}]).text == "c d "


def test_errors_of_the_server_are_raised_and_the_client_stays_usable(client):
    with pytest.raises(InvalidRequest, match="top_p must be"):
        client.generate("[invalid_argument] top_p must be")
    assert client.generate("still here").num_output_tokens == 2


@pytest.mark.parametrize("num_chunks", [0, 1])
def test_leaving_a_stream_early_cancels_the_request(client, toy_server, num_chunks):
    with client.stream(ENDLESS) as stream:
        for _, _ in zip(range(num_chunks), stream, strict=False):
            pass
    assert becomes_idle(toy_server.server)
    assert list(stream) == []


def test_cancel_from_another_thread_ends_the_iteration(client, toy_server):
    stream = client.stream(ENDLESS)
    threading.Timer(0.2, stream.cancel).start()
    with pytest.raises(Cancelled):
        for _ in stream:
            pass
    assert becomes_idle(toy_server.server)


def test_threads_share_a_client(client):
    texts = [f"{number} " * (number + 1) for number in range(16)]
    answers = [""] * len(texts)

    def ask(number: int) -> None:
        answers[number] = client.generate(texts[number]).text

    threads = [threading.Thread(target=ask, args=(number,)) for number in range(len(texts))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert answers == texts


def test_an_answer_that_takes_too_long_times_out(toy_server):
    with Client(toy_server.grpc_url, timeout_s=0.3) as client, pytest.raises(TimedOut):
        client.generate(ENDLESS)


def test_health_is_the_models_own_word(client):
    health = client.health()
    assert health.server_version.startswith("2.")
    assert health.latency_ms > 0
    assert (health.is_alive, health.is_ready, health.status) == (True, True, "ready")
    assert health.stages["verifier"] == "ready"


def test_no_server_means_unavailable():
    with Client("127.0.0.1:1") as client, pytest.raises(Unavailable, match="cannot be reached"):
        client.health()
