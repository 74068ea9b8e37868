"""SIGTERM: a moment of acceptance, then refusal, while running answers end whole."""

import contextlib
import http.client
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator

import httpx2
import pytest
from waiting import wait_until

pytestmark = pytest.mark.server

DRAIN_S = 2.0
WORDS = 400  # of the toy model: 8 s


@contextlib.contextmanager
def command(server_url: str, **options: object) -> Iterator[tuple[subprocess.Popen, str]]:
    """The gateway's process and its URL."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    arguments = [f"--{name}={value}" for name, value in options.items()]
    line = [sys.executable, "-m", "canopy_gateway", f"--port={port}", f"--server={server_url}"]
    with subprocess.Popen([*line, *arguments], env=os.environ) as process:
        url = f"http://127.0.0.1:{port}"
        try:
            assert wait_until(lambda: status(url + "/health") == 200, timeout_s=60)
            yield process, url
        finally:
            process.kill()


def status(url: str) -> int | None:
    """None where nothing listens."""
    with contextlib.suppress(httpx2.TransportError):
        return httpx2.get(url, timeout=20).status_code
    return None


def ask(num_words: int, **fields: object) -> dict[str, object]:
    return {"model": "canopy", "prompt": "word " * num_words, **fields}


def test_after_sigterm_requests_are_accepted_for_a_moment_and_answers_end_whole(toy):
    with command(toy.grpc_url, drain=DRAIN_S) as (process, url):
        kept = http.client.HTTPConnection(url.removeprefix("http://"), timeout=20)
        kept.request("GET", "/v1/models")
        assert kept.getresponse().read()
        asked = ask(WORDS, stream=True)
        with httpx2.stream("POST", url + "/v1/completions", json=asked, timeout=60) as response:
            lines = response.iter_lines()
            next(lines)
            process.send_signal(signal.SIGTERM)
            assert wait_until(lambda: status(url + "/health") == 503)
            late = httpx2.post(url + "/v1/completions", json=ask(1), timeout=20)
            assert late.status_code == 200
            assert late.headers["connection"] == "close"
            assert wait_until(lambda: status(url + "/v1/models") is None)
            assert process.poll() is None
            events = [line for line in lines if line.startswith("data: ")]
        assert events[-1] == "data: [DONE]"
        texts = [json.loads(event.removeprefix("data: "))["choices"] for event in events[:-1]]
        assert texts[-1][0]["finish_reason"] == "length"
        process.wait(timeout=20)
        kept.close()


def test_a_second_signal_leaves_the_moment_out(toy):
    with command(toy.grpc_url, drain=600) as (process, url):
        process.send_signal(signal.SIGTERM)
        assert wait_until(lambda: status(url + "/health") == 503)
        process.send_signal(signal.SIGTERM)
        process.wait(timeout=20)
