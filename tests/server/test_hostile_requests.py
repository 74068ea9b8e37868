"""A request that no stage can serve is refused at the door, and no answer beside it notices."""

import pytest
from wire import Stream, ask

pytestmark = pytest.mark.server

ENDLESS = {"temperature": 0, "ignore_eos": True, "max_tokens": 200}


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"temperature": 1, "top_p": 1e-46, "acceptance": "rejection"}, "top_p must be"),
        ({"stop_token_ids": [257], "min_tokens": 1}, "outside the vocabulary"),
        ({"temperature": 1e308}, "temperature must be"),
    ],
)
def test_what_would_break_a_stage_is_refused_and_no_neighbour_notices(server, options, text):
    expected = ask(server.grpc_url, "abcabc", **ENDLESS).text
    failures = stage_failures(server)
    with Stream(server.grpc_url) as neighbour:
        neighbour.send("abcabc", request_id="neighbour", **ENDLESS)
        error = ask(server.grpc_url, "abc", **options).error
        answer = neighbour.collect()["neighbour"]
    assert error is not None
    assert error.startswith("[invalid_argument]")
    assert text in error
    assert (answer.error, answer.text) == (None, expected)
    assert stage_failures(server) == failures


def test_a_temperature_too_small_for_the_device_is_greedy(server):
    greedy = ask(server.grpc_url, "abcabc", **ENDLESS).text
    options = ENDLESS | {"temperature": 1e-46, "acceptance": "rejection"}
    assert ask(server.grpc_url, "abcabc", **options).text == greedy


def stage_failures(server) -> float:
    return sum(v for n, v in server.metrics().items() if n.startswith("canopy_stage_failures"))
