"""How the gateway speaks HTTP, whatever the text of an answer is."""

import json

import httpx2
import pytest
from served import gateway
from toy_service import ENDLESS

from canopy_gateway import GatewaySettings

pytestmark = pytest.mark.server

ORIGIN = "https://page.example"


@pytest.fixture(scope="module")
def url(toy):
    """Streams begin at once, and silence is broken at once."""
    settings = GatewaySettings(
        server_url=toy.grpc_url,
        api_keys=("key",),
        allowed_origins=(ORIGIN,),
        stream_start_s=0.001,
        comment_interval_s=0.002,
    )
    with gateway(settings) as url:
        yield url


@pytest.fixture
def http(url):
    with httpx2.Client(base_url=url, headers={"Authorization": "Bearer key"}) as client:
        yield client


def ask(prompt: str, **fields: object) -> dict[str, object]:
    return {"model": "canopy", "prompt": prompt, **fields}


def test_silence_within_a_stream_is_filled_with_comments(http):
    with http.stream("POST", "/v1/completions", json=ask("one two", stream=True)) as response:
        assert response.status_code == 200
        events = "".join(response.iter_text()).split("\n\n")
    assert events[0].startswith(":")
    data = [event.removeprefix("data: ") for event in events if event.startswith("data: ")]
    assert data[-1] == "[DONE]"
    texts = [json.loads(event)["choices"][0]["text"] for event in data[:-1]]
    assert "".join(texts) == "one two "
    assert all(event.startswith((":", "data: ")) for event in events if event)


def test_an_event_of_a_chat_carries_role_text_and_end_together(http):
    asked = {"model": "canopy", "messages": [{"role": "user", "content": "a b c"}], "stream": True}
    with http.stream("POST", "/v1/chat/completions", json=asked) as response:
        events = [e for e in "".join(response.iter_text()).split("\n\n") if e.startswith("data: {")]
    choices = [json.loads(event.removeprefix("data: "))["choices"][0] for event in events]
    assert choices[0]["delta"]["role"] == "assistant"
    assert all(choice["delta"].keys() == {"content"} for choice in choices[1:])
    assert "".join(choice["delta"]["content"] for choice in choices) == "a b c "
    assert [choice["finish_reason"] for choice in choices] == [
        *[None] * (len(choices) - 1),
        "length",
    ]


@pytest.mark.parametrize("stream", [True, False])
def test_line_ends_of_unicode_leave_escaped(http, stream):
    text = "a\u2028b\x85c\u2029d\x0be"
    response = http.post("/v1/completions", json=ask(text, stream=stream))
    body = response.content.decode()
    assert not set("\x85\u2028\u2029\x0b\x0c") & set(body)
    if not stream:
        words = text.split()  # as the model behind splits them
        assert response.json()["choices"][0]["text"] == " ".join(words) + " "


@pytest.mark.parametrize("path", ["/health", "/v1/models", "/v1/models/canopy", "/"])
def test_head_is_get_without_a_body(http, path):
    head, get = http.head(path), http.get(path)
    assert head.status_code == get.status_code == 200
    assert head.content == b""
    assert head.headers["content-length"] == get.headers["content-length"]


@pytest.mark.parametrize("path", ["/v1/models/", "/v1/completions/", "/static", "/static/", "//"])
def test_nothing_is_redirected(http, path):
    for response in (http.get(path), http.post(path, json=ask("a"))):
        assert not response.is_redirect
        assert "location" not in response.headers


def test_a_slash_at_the_end_of_a_path_changes_nothing(http):
    assert http.post("/v1/completions/", json=ask("a")).json()["choices"][0]["text"] == "a "


def preflight(url: str, origin: str) -> httpx2.Response:
    headers = {
        "Origin": origin,
        "Access-Control-Request-Method": "POST",
        "Access-Control-Request-Headers": "authorization, content-type, x-stainless-lang",
    }
    return httpx2.options(url + "/v1/chat/completions", headers=headers)


def test_a_page_of_an_allowed_origin_may_ask(url, http):
    response = preflight(url, ORIGIN)
    assert response.status_code == 200
    assert response.headers["access-control-allow-origin"] == ORIGIN
    assert "x-stainless-lang" in response.headers["access-control-allow-headers"]
    answer = http.post("/v1/completions", json=ask("a"), headers={"Origin": ORIGIN})
    assert answer.headers["access-control-allow-origin"] == ORIGIN
    refused = httpx2.post(url + "/v1/completions", json={}, headers={"Origin": ORIGIN})
    assert refused.status_code == 401
    assert refused.headers["access-control-allow-origin"] == ORIGIN


def test_other_origins_are_not_named(url, http):
    assert "access-control-allow-origin" not in preflight(url, "https://evil.example").headers
    answer = http.get("/v1/models", headers={"Origin": "https://evil.example"})
    assert "access-control-allow-origin" not in answer.headers


def test_without_the_option_a_preflight_is_neither_answered_nor_asked_for_a_key(toy):
    with gateway(GatewaySettings(server_url=toy.grpc_url, api_keys=("key",))) as url:
        response = preflight(url, ORIGIN)
    assert response.status_code == 405
    assert "access-control-allow-origin" not in response.headers


def test_one_key_cannot_take_every_place(toy):
    settings = GatewaySettings(
        server_url=toy.grpc_url, api_keys=("one", "two"), max_concurrent=4, max_concurrent_per_key=1
    )
    with gateway(settings) as url:
        long = ask(ENDLESS, stream=True)
        one, two = ({"Authorization": f"Bearer {key}"} for key in ("one", "two"))
        with httpx2.stream("POST", url + "/v1/completions", json=long, headers=one) as response:
            assert response.status_code == 200
            refused = httpx2.post(url + "/v1/completions", json=ask("a"), headers=one)
            assert (refused.status_code, refused.headers["retry-after"]) == (429, "1")
            assert "this API key" in refused.json()["error"]["message"]
            other = httpx2.post(url + "/v1/completions", json=ask("a"), headers=two)
            assert other.status_code == 200
