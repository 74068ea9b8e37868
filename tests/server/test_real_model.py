"""The embedded default end to end: SmolLM2 behind the real server, its text unchanged by anything.

Fetches the model when it is not there yet; that is what `make serve` does, too.
"""

from collections.abc import Iterator
from pathlib import Path

import pytest
from replay import assert_same_or_tied
from tested_server import TestedServer
from wire import Stream, ask

from canopy.config import DEFAULT_MODEL, CacheConfig, Deployment, TargetConfig
from canopy.model_store.folders import fetch_model
from canopy.server.runtime import with_free_ports

pytestmark = pytest.mark.server

PROMPTS = [
    "Once upon a time, in a small village by the sea,",
    "def fibonacci(n):\n    if n <= 1:\n        return n\n",
    "The three states of water are",
    "Q: What is 12 + 30?\nA:",
    "To be, or not to be, that is the question. To be, or not",
    "中文：今天天气很好。English:",
    'Names: ["Ann", "Bob", "Cid"]\nSorted backwards: [',
    "1, 2, 3, 4, 5, 6,",
]


@pytest.fixture(scope="module")
def model() -> Path:
    return fetch_model(DEFAULT_MODEL)


@pytest.fixture(scope="module", params=["int4", "float32"])
def real_server(request, model: Path, tmp_path_factory) -> Iterator[TestedServer]:
    deployment = Deployment(
        target=TargetConfig(dtype=request.param), cache=CacheConfig(num_tokens=4096)
    )
    with TestedServer(with_free_ports(deployment), tmp_path_factory.mktemp("real")) as server:
        yield server


@pytest.mark.parametrize("temperature", [0.0, 0.7], ids=["greedy", "coupled"])
def test_concurrent_speculative_text_is_the_plain_text(real_server, model, temperature):
    is_exact = real_server.deployment.target.dtype == "int4"
    prompts = PROMPTS if is_exact else PROMPTS[::2]  # float32 is several times slower
    options = [
        {"temperature": temperature, "seed": seed, "max_tokens": 12 + 2 * seed}
        for seed in range(len(prompts))
    ]
    with Stream(real_server.grpc_url) as stream:
        for index, (prompt, given) in enumerate(zip(prompts, options, strict=True)):
            stream.send(prompt, request_id=str(index), **given)
        together = stream.collect(count=len(prompts), timeout_s=120)
    for index, (prompt, given) in enumerate(zip(prompts, options, strict=True)):
        answer = together[str(index)]
        assert answer.error is None
        alone = ask(real_server.grpc_url, prompt, speculation="off", **given)
        if is_exact:
            assert answer.text == alone.text
        assert_same_or_tied(model, prompt, given, answer.text, alone.text)
    assert real_server.cache_is_free()


def test_a_chat_question_gets_a_sensible_answer(real_server):
    messages = '[{"role": "user", "content": "Name the capital of France."}]'
    answer = ask(real_server.grpc_url, None, messages=messages, temperature=0, max_tokens=40)
    assert "Paris" in answer.text
    assert answer.outputs[-1]["finish_reason"] == "stop"
    assert answer.report["acceptance_length"] >= 1.0
