"""The tree builder that stands for the stage while nothing changes."""

import numpy as np
import pytest

from canopy.config import TreeConfig
from canopy.costs.cost_model import CostModel
from canopy.costs.profile import Profile
from canopy.errors import StageFailed
from canopy.protocol.messages import BuildReply, BuildRequest
from canopy.sampling import Acceptance, PolicyName
from canopy.tree_builder.cached import CachedTreeBuilder
from canopy.tree_builder.stage import PolicyTreeBuilder

TREE = TreeConfig(max_depth=4, max_branch=4, price_ttl_steps=4)
PROFILE = Profile(cost_model=CostModel((1,), (1, 65), ((10.0, 42.0),)), overhead_ms=2.0)
NUM_ROUNDS_TO_BE_SURE = 40


class Stage:
    """The real stage, its requests kept; it can fail."""

    def __init__(self, tree: TreeConfig = TREE) -> None:
        self.stage = PolicyTreeBuilder(tree, PROFILE)
        self.asked: list[BuildRequest] = []
        self.is_dead = False

    def build(self, request: BuildRequest) -> BuildReply:
        if self.is_dead:
            raise StageFailed("tree_builder", "gone")
        self.asked.append(request)
        return self.stage.build(request)


def request(
    sizes=(6,), policy=PolicyName.PRICED, mode=Acceptance.GREEDY, seed=0, last=None, **numbers
):
    """Random trees; last: sequences, drafted, accepted, verify ms, draft ms, step ms."""
    random = np.random.default_rng(seed)
    last = last or [0] * 6
    numbers = {
        "num_running": len(sizes),
        "num_waiting": 0,
        "num_prompt_tokens": 0,
        "num_free_blocks": 1000,
    } | numbers
    parents = [[-1, *(int(random.integers(0, n + 1)) for n in range(size))] for size in sizes]
    logs = [[0.0, *(-0.9 * random.random(size))] for size in sizes]
    return BuildRequest(
        num_nodes=np.array(sizes, np.int32),
        parents=np.concatenate(parents).astype(np.int32),
        log_probs=np.concatenate(logs).astype(np.float32),
        entropies=np.zeros(sum(sizes) + len(sizes), np.float32),
        policies=np.full(len(sizes), policy, np.int32),
        node_budgets=np.full(len(sizes), 16, np.int32),
        acceptances=np.full(len(sizes), mode, np.int32),
        last_counts=np.array(last[:3], np.int32),
        last_times_ms=np.array(last[3:], np.float32),
        **{name: np.array([number], np.int32) for name, number in numbers.items()},
    )


def choose(stage, **kind):
    """A holder whose next steps need not ask: it has just asked, being sure of its prices."""
    holder = CachedTreeBuilder(stage, TREE, PROFILE)
    for seed in range(NUM_ROUNDS_TO_BE_SURE):
        if int(holder.build(request(seed=seed, **kind)).price_ttl_steps[0]) == TREE.price_ttl_steps:
            stage.asked.clear()
            return holder
    raise AssertionError("the stage never lets its prices be held")


def same(first: BuildReply, second: BuildReply) -> bool:
    return all(
        np.array_equal(getattr(first, name), getattr(second, name))
        for name in ("num_selected", "selected", "draft_next")
    )


@pytest.mark.parametrize("policy", [PolicyName.PRICED, PolicyName.TOPN, PolicyName.CHAIN])
@pytest.mark.parametrize("mode", [Acceptance.GREEDY, Acceptance.TRAVERSAL])
def test_held_steps_choose_what_the_stage_would(policy, mode):
    stage = Stage()
    kind = {"sizes": (20, 9, 14), "policy": policy, "mode": mode}
    holder = choose(stage, **kind)
    for seed in range(100, 103):
        message = request(seed=seed, **kind)
        cached = holder.build(message)
        assert stage.asked == []
        frozen = PolicyTreeBuilder(TREE, PROFILE)
        frozen._controller = stage.stage._controller
        told = frozen.build(message)
        assert len(cached.selected) > 0
        assert same(cached, told)
        assert cached.predicted_ms == pytest.approx(told.predicted_ms, rel=1e-5)
        assert 0.0 < cached.least_survival[0] < cached.price[0]


def test_the_stage_is_asked_again_when_its_steps_are_over():
    stage = Stage()
    holder = choose(stage)
    for seed in range(2 * TREE.price_ttl_steps):
        holder.build(request(seed=seed))
    assert len(stage.asked) == 2


def test_prices_are_not_held_before_the_stage_is_sure_of_them():
    stage = Stage()
    holder = CachedTreeBuilder(stage, TREE, PROFILE)
    for seed in range(20):
        holder.build(request(seed=seed))
    assert len(stage.asked) == 20


def test_nothing_is_held_where_every_step_shall_ask():
    tree = TreeConfig(price_ttl_steps=1)
    stage = Stage(tree)
    holder = CachedTreeBuilder(stage, tree, PROFILE)
    for seed in range(50):
        holder.build(request(seed=seed))
    assert len(stage.asked) == 50


@pytest.mark.parametrize(
    "change",
    [
        {"num_waiting": 1},
        {"num_prompt_tokens": 100, "num_running": 2},
        {"num_running": 2},
        {"num_free_blocks": 1},
        {"sizes": (6, 6)},
    ],
    ids=str,
)
def test_a_change_of_the_load_is_told_at_once(change):
    stage = Stage()
    holder = choose(stage)
    holder.build(request(**change))
    assert len(stage.asked) == 1


def test_the_stage_hears_of_the_step_it_built_and_of_the_time_beside_verifying():
    stage = Stage()
    holder = choose(stage)
    holder.build(request(last=[1, 5, 3, 12.0, 1.0, 15.0]))  # of the stage's own step
    holder.build(request(last=[1, 2, 1, 9.0, 3.0, 16.0]))
    holder.build(request(last=[0, 0, 0, 0.0, 0.0, 0.0]))  # tells nothing
    holder.build(request(last=[1, 4, 1, 9.0, 2.0, 12.0]))
    (told,) = stage.asked
    assert told.last_counts.tolist() == [1, 5, 3]
    assert told.last_times_ms.tolist() == pytest.approx([12.0, 2.0, 12.0 + 13.0 / 3])


def test_a_step_that_says_nothing_of_the_built_one_says_nothing():
    stage = Stage()
    holder = choose(stage)
    holder.build(request())
    holder.build(request(last=[1, 2, 1, 9.0, 3.0, 16.0], num_waiting=2))
    assert stage.asked[0].last_counts.tolist() == [0, 0, 0]


def test_a_dead_stage_is_noticed_at_the_next_hop_and_its_prices_are_dropped():
    stage = Stage()
    holder = choose(stage)
    stage.is_dead = True
    with pytest.raises(StageFailed):
        holder.build(request(num_waiting=1))
    stage.is_dead = False
    holder.build(request())
    assert len(stage.asked) == 1
