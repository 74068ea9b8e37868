"""Speculation, batching and order change nothing: 32 streams at once equal one by one, plain."""

import numpy as np
import pytest
from crowd import NUM_STREAMS, WORDS, run_together
from replay import assert_same_or_tied
from wire import ask

pytestmark = pytest.mark.server


def make_requests(temperature: float, max_tokens: int) -> list[tuple[str, dict]]:
    """Prompts of mixed lengths with seeds of their own."""
    rng = np.random.default_rng(5)
    requests = []
    for index in range(NUM_STREAMS):
        prompt = "".join(rng.choice(WORDS, size=rng.integers(1, 9)))
        length = int(rng.integers(4, max_tokens + 1))
        options = {"temperature": temperature, "seed": index, "max_tokens": length}
        requests.append((prompt, options | {"ignore_eos": True}))
    return requests


@pytest.fixture(scope="module", params=[0.0, 1.0], ids=["greedy", "coupled"])
def plain(request, shared_server) -> tuple[list[tuple[str, dict]], list[str]]:
    """Requests, and what is answered to each alone and without speculation."""
    requests = make_requests(request.param, max_tokens=48)
    answers = [
        ask(shared_server.grpc_url, prompt, speculation="off", **options)
        for prompt, options in requests
    ]
    return requests, [answer.text for answer in answers]


@pytest.mark.parametrize("policy", ["chain", "uniform", "threshold", "topn"])
def test_concurrent_speculative_streams_equal_plain_ones(server, tiny_folder, plain, policy):
    requests, texts_alone = plain
    together = run_together(server.grpc_url, requests, speculation=policy, node_budget=12)
    for (prompt, options), text, alone in zip(requests, together, texts_alone, strict=True):
        assert_same_or_tied(tiny_folder, prompt, options, text, alone)
    assert server.cache_is_free()


@pytest.mark.parametrize("acceptance", ["rejection", "traversal", "target_only"])
def test_every_acceptance_mode_serves_concurrent_streams(server, acceptance):
    requests = make_requests(temperature=0.8, max_tokens=24)
    texts = run_together(server.grpc_url, requests, acceptance=acceptance)
    assert all(texts)
    assert server.cache_is_free()


def test_a_cache_too_small_for_all_preempts_and_loses_nothing(small_server, tiny_folder):
    requests = make_requests(temperature=1.0, max_tokens=160)
    together = run_together(small_server.grpc_url, requests)
    for (prompt, options), text in zip(requests, together, strict=True):
        alone = ask(small_server.grpc_url, prompt, speculation="off", **options)
        assert_same_or_tied(tiny_folder, prompt, options, text, alone.text)
    assert small_server.metrics()["canopy_preemptions_total"] > 0
    assert small_server.cache_is_free()
