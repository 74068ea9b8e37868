"""Limits of a connection, met over a bare socket."""

import contextlib
import http.client
import json
import socket
import time
from collections.abc import Iterator

import httpx2
import pytest
from served import gateway
from waiting import wait_until

from canopy.server.probe import read_metrics
from canopy_gateway import GatewaySettings

pytestmark = pytest.mark.server

POST = b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
BODY = json.dumps({"model": "canopy", "prompt": "a"}).encode()
LENGTH = b"Content-Length: %d\r\n" % len(BODY)


@pytest.fixture(scope="module")
def url(toy):
    settings = GatewaySettings(
        server_url=toy.grpc_url, head_timeout_s=0.3, write_timeout_s=0.5, max_connections=40
    )
    with gateway(settings) as url:
        yield url


@contextlib.contextmanager
def connected(url: str, receive_buffer: int | None = None) -> Iterator[socket.socket]:
    host, port = url.removeprefix("http://").split(":")
    with socket.socket() as connection:
        if receive_buffer is not None:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
        connection.settimeout(20)
        connection.connect((host, int(port)))
        yield connection


def read_to_the_end(connection: socket.socket) -> bytes:
    """Until the other side closes."""
    parts = []
    with contextlib.suppress(ConnectionResetError):
        while part := connection.recv(1 << 16):
            parts.append(part)
    return b"".join(parts)


def status_of(response: bytes) -> int:
    assert response.count(b"HTTP/1.1 ") == 1
    return int(response.split()[1])


CHUNKED = b"Transfer-Encoding: chunked\r\n"
AMBIGUOUS = {
    "length and chunked": POST + LENGTH + CHUNKED + b"\r\n0\r\n\r\n",
    "chunked and length": POST + CHUNKED + LENGTH + b"\r\n0\r\n\r\n",
    "two lengths": POST + LENGTH + b"Content-Length: 3\r\n\r\n" + BODY,
    "a list of lengths": POST + b"Content-Length: 3, 3\r\n\r\nabc",
    "a signed length": POST + b"Content-Length: +3\r\n\r\nabc",
    "an unknown coding": POST + b"Transfer-Encoding: xchunked\r\n\r\n0\r\n\r\n",
    "a coding after chunked": POST + b"Transfer-Encoding: chunked, identity\r\n\r\n0\r\n\r\n",
    "a space before the colon": POST + b"Transfer-Encoding : chunked\r\n\r\n0\r\n\r\n",
    "a folded header": POST + b"X: a\r\n b\r\n" + LENGTH + b"\r\n" + BODY,
    "lines without CR": POST.replace(b"\r\n", b"\n") + b"Content-Length: 0\n\n",
    "a chunk of the wrong size": POST + CHUNKED + b"\r\n3\r\nabcXX0\r\n\r\n",
    "no host": b"GET /health HTTP/1.1\r\n\r\n",
    "two hosts": b"GET /health HTTP/1.1\r\nHost: x\r\nHost: y\r\n\r\n",
    "no HTTP": b"\x16\x03\x01\x02\x00\x01\x00\xfc\r\n",
}


@pytest.mark.parametrize("request_bytes", AMBIGUOUS.values(), ids=AMBIGUOUS)
def test_what_could_be_read_in_two_ways_is_refused_and_closed(url, request_bytes):
    with connected(url) as connection:
        connection.sendall(request_bytes)
        response = read_to_the_end(connection)
    head, _, body = response.partition(b"\r\n\r\n")
    if body:  # a fault within the body may find the request already given up
        assert status_of(response) == 400
        assert b"connection: close" in head.lower()
        assert json.loads(body)["error"]["type"] == "invalid_request_error"
    else:
        assert "chunk" in str(request_bytes)


@pytest.mark.parametrize(
    "head", [b"", b"GET /health HTTP/1.1\r\nHost: x\r\nX: ", b"\r\n\r\n", POST[:5]]
)
def test_a_head_that_does_not_arrive_is_given_up(url, head):
    with connected(url) as connection:
        connection.sendall(head)
        response = read_to_the_end(connection)
    assert response == b"" or status_of(response) == 408


def test_the_time_of_a_head_counts_on_a_used_connection_too(url):
    connection = http.client.HTTPConnection(url.removeprefix("http://"), timeout=20)
    connection.request("GET", "/v1/models")
    assert connection.getresponse().read()
    connection.sock.sendall(b"GET /v1/models HTTP/1.1\r\n")
    assert status_of(read_to_the_end(connection.sock)) == 408
    connection.close()


def test_a_head_behind_a_request_does_not_disturb_its_answer(url):
    body = json.dumps({"model": "canopy", "prompt": "a " * 40}).encode()
    with connected(url) as connection:
        connection.sendall(POST + b"Content-Length: %d\r\n\r\n" % len(body) + body + b"GET /he")
        response = read_to_the_end(connection)
    assert response.startswith(b"HTTP/1.1 200")
    assert b"a " * 40 in response


@pytest.mark.parametrize(
    "headers", [b"X: a\r\n" * 200, b"X: " + b"a" * 100_000 + b"\r\n", b"X: " + b"a" * 1_000_000]
)
def test_too_many_or_too_large_headers_are_refused(url, headers):
    with connected(url) as connection:
        with contextlib.suppress(ConnectionError):  # it does not read what it refuses
            connection.sendall(b"GET /health HTTP/1.1\r\nHost: x\r\n" + headers + b"\r\n")
        response = read_to_the_end(connection)
    assert response == b"" or status_of(response) == 431


def test_half_sent_heads_do_not_keep_others_out_for_long(url):
    with contextlib.ExitStack() as stack:
        slow = [stack.enter_context(connected(url)) for _ in range(60)]
        for connection in slow:
            with contextlib.suppress(ConnectionError):
                connection.sendall(b"GET / HTTP/1.1\r\nHost:")
        answers = [read_to_the_end(connection) for connection in slow]
        statuses = [status_of(answer) for answer in answers if answer]
        assert set(statuses) <= {408, 503}
        assert statuses.count(408) >= 20
        assert wait_until(lambda: httpx2.get(url + "/v1/models").status_code == 200)


def test_a_request_that_offers_another_protocol_keeps_its_body(url):
    """As java.net.http sends its first request."""
    offer = b"Upgrade: h2c\r\nConnection: Upgrade, HTTP2-Settings\r\nHTTP2-Settings: AAM\r\n"
    with connected(url) as connection:
        connection.sendall(POST + offer + LENGTH + b"\r\n" + BODY)
        assert status_of(connection.recv(1 << 16)) == 200


def test_a_reader_that_stops_is_dropped_and_its_request_cancelled(toy, url):
    before = read_metrics(toy.server)["canopy_steps_total"]
    words = ["x" * 10_000] * 100
    asked = {"model": "canopy", "prompt": " ".join(words), "stream": True}
    body = json.dumps(asked).encode()
    with connected(url, receive_buffer=4096) as connection:
        connection.sendall(POST + b"Content-Length: %d\r\n\r\n" % len(body) + body)
        assert wait_until(lambda: read_metrics(toy.server)["canopy_steps_total"] > before)
        assert wait_until(lambda: read_metrics(toy.server)["canopy_running_sequences"] == 0)
    assert read_metrics(toy.server)["canopy_steps_total"] - before < len(words)


def test_an_idle_connection_outlives_the_time_that_a_head_may_take(url):
    connection = http.client.HTTPConnection(url.removeprefix("http://"), timeout=20)
    connection.connect()
    own_socket = connection.sock
    for _ in range(2):
        connection.request("GET", "/v1/models")
        assert connection.getresponse().read()
        time.sleep(0.4)
    assert connection.sock is own_socket  # http.client drops it where the server closed it
    connection.close()
