"""Requests that end before their time, stages that die, and what is left afterwards."""

import json
import socket
import urllib.error
import urllib.request
from pathlib import Path

import pytest
from stubs import kill_stub, stubs
from waiting import wait_until
from wire import Stream, ask

pytestmark = pytest.mark.server

ENDLESS = {"temperature": 0, "ignore_eos": True, "max_tokens": 400}


def test_cancelling_a_grpc_stream_frees_its_blocks(server):
    stream = Stream(server.grpc_url)
    stream.send("abc", **ENDLESS)
    next(stream.responses())
    stream.close(cancel=True)
    assert wait_until(server.cache_is_free)


def test_a_cancel_message_ends_a_request_with_a_clear_error(server):
    with Stream(server.grpc_url) as stream:
        stream.send("abc", request_id="mine", **ENDLESS)
        next(stream.responses())
        reply = ask(server.grpc_url, None, control='{"op": "cancel", "request_id": "mine"}')
        assert json.loads(reply.text) == {"cancelled": 1}
        assert any(error and error.startswith("[cancelled]") for error in _errors(stream))
    assert wait_until(server.cache_is_free)


def _errors(stream: Stream):
    for _, _, error, is_last in stream.responses():
        yield error
        if is_last:
            return


def test_closing_an_http_connection_is_noticed_at_the_next_write(server):
    host, port = server.http_url.removeprefix("http://").split(":")
    before = server.metrics()["canopy_cancellations_total"]
    body = json.dumps({"text_input": "abc", "stream": True, **ENDLESS}).encode()
    head = (
        f"POST /v2/models/canopy/generate_stream HTTP/1.1\r\nHost: {host}\r\n"
        f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    )
    with socket.create_connection((host, int(port)), timeout=10) as connection:
        connection.sendall(head.encode() + body)
        assert connection.recv(64)
    assert wait_until(lambda: server.metrics()["canopy_cancellations_total"] > before)
    assert wait_until(server.cache_is_free)


def test_a_full_queue_says_unavailable_and_loses_nobody(small_server):
    limit = small_server.max_running + small_server.max_waiting
    with Stream(small_server.grpc_url) as stream:
        for index in range(limit + 20):
            stream.send("abc", request_id=str(index), **ENDLESS | {"max_tokens": 200})
        answers = _ends(stream, limit + 20)
    refused = [error for error in answers if error]
    assert refused
    assert all(error.startswith("[unavailable] ") and "retry later" in error for error in refused)
    assert len(answers) - len(refused) >= limit
    assert small_server.cache_is_free()


def _ends(stream: Stream, count: int) -> list[str | None]:
    ends: list[str | None] = []
    for _, _, error, is_last in stream.responses(timeout_s=120):
        if is_last:
            ends.append(error)
        if len(ends) == count:
            return ends
    return ends


@pytest.mark.parametrize("stage", ["verifier", "draft", "tree_builder"])
def test_a_killed_stage_is_reloaded_and_no_stream_breaks(server, stage):
    options = ENDLESS | {"max_tokens": 200}
    expected = ask(server.grpc_url, "abcabc", **options).text
    with Stream(server.grpc_url) as stream:
        stream.send("abcabc", request_id="only", **options)
        responses = stream.responses()
        text = next(responses)[1]["text_output"]
        kill_stub(server, stage)
        for _, outputs, error, is_last in responses:
            assert error is None
            text += outputs.get("text_output", "")
            if is_last:
                break
    assert text == expected
    assert wait_until(server.cache_is_free)
    assert ask(server.grpc_url, "abcabc", **options).text == expected
    assert wait_until(lambda: _is_loaded(server, stage), timeout_s=30)


def test_requests_are_answered_while_the_draft_loads(server):
    kill_stub(server, "draft")
    ask(server.grpc_url, "abc", **ENDLESS | {"max_tokens": 4})  # finds that it is dead
    assert wait_until(lambda: not _is_ready(server, "draft"))
    num_answered = 0
    while not _is_ready(server, "draft"):
        answer = ask(server.grpc_url, "abc", **ENDLESS | {"max_tokens": 4})
        assert answer.error is None
        num_answered += not _is_ready(server, "draft")
    assert _is_loaded(server, "draft")
    assert num_answered >= 3


def test_only_the_verifier_carries_torch(server):
    def has_torch(stage: str) -> bool:
        (pid,) = stubs(server, stage)
        return "libtorch" in Path(f"/proc/{pid}/maps").read_text()

    stages = ("canopy", "draft", "tree_builder", "verifier")
    assert [stage for stage in stages if has_torch(stage)] == ["verifier"]


def _is_ready(server, stage: str) -> bool:
    """False from its unloading to the end of its loading."""
    try:
        with urllib.request.urlopen(f"{server.http_url}/v2/models/{stage}/ready", timeout=10):
            return True
    except urllib.error.HTTPError:
        return False


def _is_loaded(server, stage: str) -> bool:
    """A dead stub leaves its model ready until it is unloaded."""
    return len(stubs(server, stage)) == 1 and _is_ready(server, stage)
