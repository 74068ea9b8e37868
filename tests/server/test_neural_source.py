"""A block drafter beside lookup, through the real server: hidden states cross three processes."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from tested_server import TestedServer
from training.drafter_corpus import make_drafter
from wire import ask

from canopy.config import CacheConfig, Deployment, DrafterConfig, TargetConfig
from canopy.models.block_drafter.checkpoint import save_drafter
from canopy.server.runtime import with_free_ports

pytestmark = pytest.mark.server


@pytest.fixture(scope="module")
def block_server(tiny_folder: Path, tmp_path_factory) -> Iterator[TestedServer]:
    """The drafter is untrained: it always has something to offer, and is seldom right."""
    folder = tmp_path_factory.mktemp("drafter")
    save_drafter(make_drafter(tiny_folder), folder)
    deployment = Deployment(
        target=TargetConfig(model=str(tiny_folder)),
        drafter=DrafterConfig(source="markov", model=str(folder)),
        cache=CacheConfig(num_tokens=8192),
    )
    with TestedServer(with_free_ports(deployment), tmp_path_factory.mktemp("block")) as server:
        yield server


@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_it_drafts_every_round_and_the_text_is_the_plain_one(block_server, temperature):
    given = {"temperature": temperature, "seed": 5, "max_tokens": 40, "ignore_eos": True}
    plain, drafted = (
        ask(block_server.grpc_url, "the river ", speculation=speculation, **given, **budget)
        for speculation, budget in (("off", {}), ("topn", {"node_budget": 6}))
    )
    assert drafted.error is None
    assert drafted.text == plain.text
    # The first round has no features yet, and the last may be near the end.
    assert drafted.report["drafted_nodes"] >= 6 * (drafted.report["rounds"] - 3)
    assert block_server.cache_is_free()
