"""On int8, text is the same to the token whatever serves it: no tie rule.

32 streams at once, under every policy, of few prompts (so that prefixes are reused), on a cache
that must preempt, with prompts cut into small or large chunks, beside each request alone and plain.
Options that look back on the text before see the same text at every node of a tree.
"""

from collections.abc import Iterator

import numpy as np
import pytest
from crowd import NUM_STREAMS, WORDS, run_together
from tested_server import MAX_CONTEXT, TestedServer
from wire import ask

from canopy.config import POLICIES, CacheConfig, Deployment, LimitsConfig, TargetConfig
from canopy.server.runtime import with_free_ports

pytestmark = pytest.mark.server


@pytest.fixture(scope="module", params=[48, 512], ids="steps of {} tokens".format)
def exact_server(request, tiny_folder, tmp_path_factory) -> Iterator[TestedServer]:
    deployment = Deployment(
        target=TargetConfig(model=str(tiny_folder), dtype="int8"),
        cache=CacheConfig(num_tokens=MAX_CONTEXT),
        limits=LimitsConfig(max_running=16, max_waiting=32, max_step_tokens=request.param),
    )
    with TestedServer(with_free_ports(deployment), tmp_path_factory.mktemp("exact")) as server:
        yield server


@pytest.fixture(scope="module")
def texts_of_the_first_server() -> dict[float, list[str]]:
    """Filled by the first server that the tests meet, by temperature."""
    return {}


OPTIONS = [
    {},
    {"repetition_penalty": 1.3, "frequency_penalty": 0.2, "top_p": 0.95},
    {"logit_bias": {"101": 3.0, "97": -100}, "bad_words": ["be", "x"], "min_p": 0.02},
    {"presence_penalty": 0.6, "typical_p": 0.9, "allowed_token_ids": list(range(32, 123))},
    {"ignore_eos": False, "structured_outputs": {"regex": "([a-z]{2,5} ){5,40}[0-9]"}},
    {"ignore_eos": False, "stop_token_ids": list(range(97, 110)), "min_tokens": 15},
]


def requests_under_every_policy(temperature: float) -> list[tuple[str, dict]]:
    rng = np.random.default_rng(11)
    prompts = ["".join(rng.choice(WORDS, size=size)) for size in (3, 9, 14, 20)]
    return [
        (
            prompts[index % len(prompts)] + WORDS[index % 3],
            {
                "temperature": temperature,
                "seed": index % 5,
                "max_tokens": int(rng.integers(20, 120)),
                "ignore_eos": True,
                "speculation": POLICIES[index % len(POLICIES)],
                "node_budget": 1 + index % 12,
            }
            | OPTIONS[index % len(OPTIONS)],
        )
        for index in range(NUM_STREAMS)
    ]


@pytest.mark.parametrize("temperature", [0.0, 1.0], ids=["greedy", "coupled"])
def test_text_depends_on_prompt_and_seed_alone(
    exact_server, texts_of_the_first_server, temperature
):
    requests = requests_under_every_policy(temperature)
    together = run_together(exact_server.grpc_url, requests)
    for (prompt, options), text in zip(requests, together, strict=True):
        plain = options | {"speculation": "off"}
        assert ask(exact_server.grpc_url, prompt, **plain).text == text
    assert texts_of_the_first_server.setdefault(temperature, together) == together
    assert exact_server.metrics()["canopy_preemptions_total"] > 0
    assert exact_server.cache_is_free()
