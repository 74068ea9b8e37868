"""A published draft head on the real server: hidden states cross three processes."""

import pytest
from golden_heads import GOLDEN, servable_target
from tested_server import TestedServer
from wire import ask

from canopy.config import CacheConfig, Deployment, DrafterConfig, TargetConfig
from canopy.server.runtime import with_free_ports

pytestmark = pytest.mark.server


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    """The head's weights are random: it always has something to offer, and is seldom right."""
    target = servable_target("eagle3-deepspec", tmp_path_factory.mktemp("golden") / "target")
    deployment = Deployment(
        target=TargetConfig(model=str(target), num_threads=1),
        drafter=DrafterConfig(source="auto", model=str(GOLDEN / "eagle3-deepspec"), num_threads=1),
        cache=CacheConfig(num_tokens=8192),
    )
    with TestedServer(with_free_ports(deployment), tmp_path_factory.mktemp("heads")) as server:
        yield server


@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_it_drafts_every_round_and_the_text_is_the_plain_one(server, temperature):
    given = {"temperature": temperature, "seed": 5, "max_tokens": 40, "ignore_eos": True}
    plain, drafted = (
        ask(server.grpc_url, "the river ", speculation=speculation, **given, **budget)
        for speculation, budget in (("off", {}), ("topn", {"node_budget": 6}))
    )
    assert drafted.error is None
    assert drafted.text == plain.text
    # The first round has no hidden states yet, and the last may be near the end.
    assert drafted.report["drafted_nodes"] >= 6 * (drafted.report["rounds"] - 3)
    assert server.cache_is_free()
