"""A client that goes away costs the server nothing more."""

import json
import socket

import openai
import pytest
from served import gateway
from waiting import wait_until

from canopy.config import ServerConfig
from canopy.server.probe import read_metrics
from canopy_gateway import GatewaySettings

pytestmark = pytest.mark.server

ENDLESS = {"model": "canopy", "prompt": "abc", "max_tokens": 4000}
KEEPS_ON = {"ignore_eos": True}


def counted(server: ServerConfig, name: str) -> float:
    return read_metrics(server)[f"canopy_{name}"]


def is_idle(server: ServerConfig) -> bool:
    now = read_metrics(server)
    return now["canopy_running_sequences"] + now["canopy_waiting_sequences"] == 0


def test_leaving_a_stream_cancels_the_request(client, server):
    before = counted(server, "cancellations_total")
    with client.completions.create(stream=True, extra_body=KEEPS_ON, **ENDLESS) as stream:
        next(iter(stream))
    assert wait_until(lambda: counted(server, "cancellations_total") == before + 1)
    assert wait_until(lambda: is_idle(server))


def test_leaving_a_stream_cancels_every_choice(client, server):
    before = counted(server, "cancellations_total")
    begun = set()  # those that have not begun when the client leaves never run
    with client.completions.create(stream=True, n=4, extra_body=KEEPS_ON, **ENDLESS) as stream:
        for piece in stream:
            begun.add(piece.choices[0].index)
            if len(begun) == 4:
                break
    assert wait_until(lambda: counted(server, "cancellations_total") == before + 4)
    assert wait_until(lambda: is_idle(server))


def test_giving_up_on_a_whole_answer_cancels_the_request(client, server):
    before = counted(server, "cancellations_total")
    impatient = client.with_options(timeout=1.0)
    with pytest.raises(openai.APITimeoutError):
        impatient.completions.create(n=8, extra_body=KEEPS_ON, **ENDLESS)
    assert wait_until(lambda: counted(server, "cancellations_total") == before + 8)
    assert wait_until(lambda: is_idle(server))


def test_the_places_of_a_lost_client_are_free_again(triton, server):
    settings = GatewaySettings(server_url=triton.grpc_url, max_concurrent=1)
    with gateway(settings) as url:
        body = json.dumps({**ENDLESS, **KEEPS_ON}).encode()
        host, port = url.removeprefix("http://").split(":")
        head = (
            f"POST /v1/completions HTTP/1.1\r\nHost: {host}\r\nContent-Length: {len(body)}\r\n"
            "Content-Type: application/json\r\n\r\n"
        )
        with socket.create_connection((host, int(port)), timeout=10) as connection:
            connection.sendall(head.encode() + body)
            assert wait_until(lambda: not is_idle(server))
        with openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=4) as client:
            answer = client.completions.create(model="canopy", prompt="abc", max_tokens=2)
    assert answer.usage.completion_tokens <= 2


def test_a_deadline_of_the_gateway_ends_the_answer(triton, server):
    settings = GatewaySettings(server_url=triton.grpc_url, request_timeout_s=0.1)
    with (
        gateway(settings) as url,
        openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0) as client,
        pytest.raises(openai.InternalServerError) as caught,
    ):
        client.completions.create(n=8, extra_body=KEEPS_ON, **ENDLESS)
    assert (caught.value.status_code, caught.value.code) == (504, "timeout")
    assert wait_until(lambda: is_idle(server))
