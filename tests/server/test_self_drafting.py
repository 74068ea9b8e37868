"""The target as its own drafter, through the real server."""

import pytest
from wire import ask

pytestmark = pytest.mark.server


@pytest.mark.parametrize("acceptance", ["coupled", "rejection"])
@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_a_chain_from_the_target_itself_is_nearly_always_accepted(
    self_drafting_server, temperature, acceptance
):
    answer = ask(
        self_drafting_server.grpc_url,
        "the river ",
        temperature=temperature,
        seed=11,
        max_tokens=60,
        ignore_eos=True,
        speculation="chain",
        node_budget=4,
        acceptance=acceptance,
    )
    assert answer.error is None
    assert answer.report["accepted_tokens"] >= 0.9 * answer.report["drafted_nodes"]
    assert self_drafting_server.cache_is_free()
