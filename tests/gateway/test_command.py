"""The command `canopy-gateway` as an operator meets it."""

import os
import signal
import socket
import subprocess
import sys
import time
from contextlib import suppress

import httpx2
import openai
import pytest

pytestmark = pytest.mark.server

COMMAND = [sys.executable, "-m", "canopy_gateway"]


@pytest.fixture
def started(triton):
    """The process and its URL; settings come from the command line and from the environment."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    environment = os.environ | {
        "CANOPY_GATEWAY_API_KEY": "one two",
        "CANOPY_GATEWAY_SERVED_NAME": "",
        "CANOPY_GATEWAY_MAX_CHOICES": "2",
    }
    command = [*COMMAND, "--port", str(port), "--server", triton.grpc_url]
    with subprocess.Popen(command, env=environment) as process:
        url = f"http://127.0.0.1:{port}"
        assert becomes_ready(url)
        yield process, url
        process.kill()


def becomes_ready(url: str) -> bool:
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        with suppress(httpx2.TransportError):
            if httpx2.get(url + "/health").status_code == 200:
                return True
        time.sleep(0.1)
    return False


def test_settings_count_and_sigterm_lets_an_answer_end(started):
    process, url = started
    assert httpx2.get(url + "/v1/models").status_code == 401
    with openai.OpenAI(base_url=f"{url}/v1", api_key="two", max_retries=0) as client:
        assert [model.id for model in client.models.list()] == ["canopy"]
        with pytest.raises(openai.BadRequestError, match="at most 2"):
            client.completions.create(model="canopy", prompt="abc", n=3)
        stream = client.completions.create(
            model="canopy",
            prompt="abc",
            max_tokens=300,
            stream=True,
            stream_options={"include_usage": True},
            extra_body={"ignore_eos": True},
        )
        chunks = iter(stream)
        next(chunks)
        process.send_signal(signal.SIGTERM)
        *_, last = chunks
    assert last.usage.completion_tokens == 300
    process.wait(timeout=20)
    with pytest.raises(httpx2.ConnectError):
        httpx2.get(url + "/health")
