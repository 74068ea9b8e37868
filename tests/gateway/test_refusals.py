"""What the gateway refuses, and how it says so."""

import json
import socket

import httpx2
import openai
import pytest
from served import gateway

from canopy_gateway import GatewaySettings

pytestmark = pytest.mark.server

CHAT = [{"role": "user", "content": "abc"}]
ASKED = {"model": "canopy", "messages": CHAT, "max_tokens": 4}


@pytest.fixture(scope="module")
def strict_url(triton):
    """Small limits, and a key."""
    settings = GatewaySettings(
        server_url=triton.grpc_url,
        served_names=("tiny", "tiny-latest"),
        api_keys=("first", "sécond"),
        max_body_bytes=4096,
        max_prompt_bytes=1000,
        max_concurrent=2,
        max_choices=4,
    )
    with gateway(settings) as url:
        yield url


def post(url: str, body: dict | bytes | str, path="/v1/chat/completions", **headers: str):
    content = json.dumps(body) if isinstance(body, dict) else body
    fields = {"Content-Type": "application/json", "Authorization": "Bearer first"} | headers
    fields = {name.replace("_", "-"): value for name, value in fields.items()}
    return httpx2.post(url + path, content=content, headers=fields, timeout=30)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"top_p": 3.0}, "top_p must be"),
        ({"temperature": -1.0}, "temperature must be"),
        ({"temperature": "hot"}, "temperature: "),
        ({"n": 0}, "n: "),
        ({"n": 99}, "at most 8"),
        ({"messages": []}, "messages: "),
        ({"messages": [{"role": "cat", "content": "x"}]}, "messages.0.role: "),
        ({"messages": [{"role": "user"}]}, "content"),
        ({"max_tokens": 3, "max_completion_tokens": 4}, "send one of them"),
        ({"stream_options": {"include_usage": True}}, "goes with stream"),
        ({"speculation": "magic"}, "speculation must be one of"),
        ({"top_logprobs": 3}, "top_logprobs goes with logprobs"),
        ({"logprobs": True, "top_logprobs": 21}, "top_logprobs: "),
        ({"tools": [{"type": "function"}]}, "tools.0.function: "),
        ({"response_format": {"type": "json_schema"}}, "json_schema goes with"),
        ({"structured_outputs": {"regex": "("}}, "structured_outputs cannot be used"),
        ({"structured_outputs": {"json_object": True}, "ignore_eos": True}, "ignore_eos"),
        ({"presence_penalty": 2.5}, "presence_penalty must be"),
        ({"chat_template_kwargs": {"tools": []}}, "chat_template_kwargs must not hold tools"),
        ({"color": "green"}, "color: unknown field"),
    ],
)
def test_what_cannot_be_honoured_is_refused_with_its_name(client, fields, message):
    known = {name: value for name, value in fields.items() if name != "messages"}
    with pytest.raises(openai.BadRequestError) as caught:
        client.chat.completions.create(
            model="canopy", messages=fields.get("messages", CHAT), extra_body=known
        )
    assert message in caught.value.body["message"]
    assert caught.value.type == "invalid_request_error"


@pytest.mark.parametrize(
    "fields",
    [
        {"logprobs": False, "tools": None, "logit_bias": {}, "frequency_penalty": 0},
        {"response_format": {"type": "text"}, "presence_penalty": 0.0, "user": "me"},
        {"store": False, "metadata": {"a": "b"}, "service_tier": "auto", "stop": None},
    ],
)
def test_what_asks_for_nothing_is_accepted(client, fields):
    answer = client.chat.completions.create(
        model="canopy", messages=CHAT, max_tokens=2, extra_body=fields
    )
    assert answer.usage.completion_tokens == 2


def test_an_unknown_model_is_not_found(client):
    with pytest.raises(openai.NotFoundError) as caught:
        client.chat.completions.create(model="gpt", messages=CHAT)
    assert caught.value.code == "model_not_found"


def test_a_refusal_of_the_server_keeps_its_status_when_streaming(client):
    with pytest.raises(openai.BadRequestError, match=r"length is 32768 tokens.* 40000") as caught:
        client.completions.create(model="canopy", prompt="x" * 40000, stream=True)
    assert caught.value.code == "context_length_exceeded"


def test_a_body_that_is_not_json_is_refused(url):
    assert post(url, "{").status_code == 400
    assert "not valid JSON" in post(url, "{").json()["error"]["message"]
    assert post(url, "[]").status_code == 400


@pytest.mark.parametrize(
    "fields",
    [
        {"messages": [{"role": "user", "content": "\ud800"}]},
        {"stop": ["\ud800"]},
        {"model": "\ud800"},
        {"\ud800": 1},
        {"messages": [{"role": "user", "content": "x", "\ud800": "y"}]},
    ],
)
def test_half_a_surrogate_pair_is_the_clients_fault(url, fields):
    response = post(url, ASKED | fields)
    assert response.status_code == 400
    assert "nicode" in response.json()["error"]["message"]


@pytest.mark.parametrize(
    "body",
    [
        b'{"model": "\xff"}',
        b"\xff\xfe",
        b'{"max_tokens": ' + b"9" * 5000 + b"}",
        b"[" * 100_000,
        b'{"model": "canopy", "prompt": "a", "temperature": NaN}',
        b'{"model": "canopy", "prompt": "a", "max_tokens": 1e400}',
        b"",
        b"null",
    ],
)
def test_a_body_that_makes_no_sense_is_the_clients_fault(url, body):
    response = post(url, body, "/v1/completions")
    assert response.status_code == 400
    assert response.json()["error"]["type"] == "invalid_request_error"
    assert response.json()["error"]["message"]


@pytest.mark.parametrize("depth", [500, 900, 5000])
@pytest.mark.parametrize(
    "fields",
    [
        '"chat_template_kwargs": {"x": %s}',
        '"tools": [{"type": "function", "function": {"name": "f", "parameters": %s}}]',
        '"tool_choice": "required", "tools": [{"type": "function", "function": {"name": "f", '
        '"parameters": {"type": "object", "properties": {"b": {"default": %s}}}}}]',
        '"response_format": {"type": "json_schema", "json_schema": {"schema": %s}}',
    ],
)
def test_a_body_that_is_nested_too_deeply_is_the_clients_fault(url, fields, depth):
    nested = fields % ('{"a":' * depth + "1" + "}" * depth)
    chat = '{"model": "canopy", "max_tokens": 1, "messages": [{"role": "user", "content": "a"}], '
    response = post(url, chat + nested + "}")
    assert response.status_code == 400
    assert response.json()["error"]["message"]


@pytest.mark.parametrize("kind", ["text/plain", "application/x-www-form-urlencoded", ""])
def test_other_media_types_are_refused(url, kind):
    response = post(url, ASKED, Content_Type=kind)
    assert response.status_code == 415
    assert response.json()["error"]["code"] == "not_json"


def test_no_such_path_and_no_such_method_have_the_same_shape(url):
    assert post(url, {}, "/v1/embeddings").json()["error"]["type"] == "invalid_request_error"
    assert httpx2.get(url + "/v1/chat/completions").status_code == 405


def test_a_body_over_the_limit_is_refused_announced_or_not(strict_url):
    large = {**ASKED, "model": "tiny", "messages": [{"role": "user", "content": "x" * 5000}]}
    assert post(strict_url, large).status_code == 413
    data = json.dumps(large).encode()
    parts = (data[index : index + 1000] for index in range(0, len(data), 1000))
    assert post(strict_url, parts).status_code == 413
    assert post(strict_url, ASKED | {"model": "tiny"}).status_code == 200


def test_a_prompt_over_the_limit_is_refused(strict_url):
    long = {"model": "tiny", "prompt": ["é" * 300, "é" * 300]}
    response = post(strict_url, long, "/v1/completions")
    assert response.status_code == 400
    assert response.json()["error"]["code"] == "prompt_too_large"


@pytest.mark.parametrize("header", ["", "Bearer", "Bearer wrong", "Basic first", "first"])
def test_a_wrong_key_is_refused(strict_url, header):
    response = post(strict_url, ASKED, Authorization=header)
    assert response.status_code == 401
    assert response.json()["error"]["code"] == "invalid_api_key"


def test_any_valid_key_opens_and_health_needs_none(strict_url):
    key = "Bearer sécond".encode()
    response = httpx2.get(strict_url + "/v1/models", headers={"Authorization": key})
    assert [card["id"] for card in response.json()["data"]] == ["tiny", "tiny-latest"]
    assert httpx2.get(strict_url + "/v1/models").status_code == 401
    for path in ("/tokenize", "/detokenize"):
        assert post(strict_url, {}, path, Authorization="").status_code == 401
    for path in ("/health", "/health/live"):
        assert httpx2.get(strict_url + path).status_code == 200


def test_beyond_the_concurrency_limit_clients_are_told_to_wait(strict_url):
    with openai.OpenAI(base_url=strict_url + "/v1", api_key="first", max_retries=0) as client:
        asked = {"model": "tiny", "prompt": "abc", "max_tokens": 400}
        with client.completions.create(
            stream=True, n=2, extra_body={"ignore_eos": True}, **asked
        ) as stream:
            next(iter(stream))
            with pytest.raises(openai.RateLimitError) as caught:
                client.completions.create(**asked)
        assert caught.value.response.headers["retry-after"] == "1"
        patient = client.with_options(max_retries=5)
        answer = patient.completions.create(model="tiny", prompt="abc", max_tokens=2)
        assert answer.usage.completion_tokens <= 2


def test_health_tells_whether_the_server_answers(url):
    found = httpx2.get(url + "/health")
    assert (found.status_code, found.json()["status"]) == (200, "ready")
    assert found.json()["server_version"].startswith("2.")


def test_without_a_server_everything_says_unavailable():
    with gateway(GatewaySettings(server_url="127.0.0.1:1")) as url:
        health = httpx2.get(url + "/health")
        assert (health.status_code, health.json()["status"]) == (503, "unavailable")
        assert httpx2.get(url + "/health/live").status_code == 200
        response = post(url, ASKED)
        assert (response.status_code, response.headers["retry-after"]) == (503, "1")
        assert response.json()["error"]["code"] == "unavailable"
        tool = {"type": "function", "function": {"name": "f"}}
        assert post(url, ASKED | {"tools": [tool]}).status_code == 503


def test_a_request_that_does_not_arrive_is_given_up(triton):
    settings = GatewaySettings(server_url=triton.grpc_url, body_timeout_s=0.2)
    with gateway(settings) as url:
        host, port = url.removeprefix("http://").split(":")
        with socket.create_connection((host, int(port)), timeout=10) as connection:
            connection.sendall(
                b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 50\r\n"
                b"Content-Type: application/json\r\n\r\n{"
            )
            assert connection.recv(64).startswith(b"HTTP/1.1 408")
