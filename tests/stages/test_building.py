"""The build stage selects for each sequence by its own policy."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from canopy.config import Deployment, TreeConfig
from canopy.messages import BuildRequest
from canopy.policy import PolicySettings, select
from canopy.sampling import PolicyName
from canopy.stages.building import PolicyTreeBuilder, make_tree_builder
from canopy.tree.forest import split_ragged

TREE = TreeConfig(max_depth=3, max_branch=2)
BUSHY = ([-1, 0, 0, 1, 1, 2], [0.0, -0.1, -0.2, -0.3, -2.0, -0.1])


def request(proposals, policies, budgets):
    empty_floats = np.zeros(0, np.float32)
    parents = [np.array(parents, np.int32) for parents, _ in proposals]
    return BuildRequest(
        num_nodes=np.array([len(p) - 1 for p in parents], np.int32),
        parents=np.concatenate([np.zeros(0, np.int32), *parents]),
        log_probs=np.concatenate([empty_floats, *(np.float32(logs) for _, logs in proposals)]),
        entropies=np.zeros(sum(map(len, parents)), np.float32),
        policies=np.array(policies, np.int32),
        node_budgets=np.array(budgets, np.int32),
    )


def built(message, tree=TREE):
    reply = PolicyTreeBuilder(tree).build(message)
    assert reply.draft_next.tolist() == [1]
    return [nodes.tolist() for nodes in split_ragged(reply.selected, reply.num_selected)]


def test_each_sequence_has_its_own_policy_and_budget():
    policies = [PolicyName.CHAIN, PolicyName.UNIFORM, PolicyName.TOPN, PolicyName.OFF]
    message = request([BUSHY] * 4, policies, [4, 3, 3, 4])
    assert built(message) == [[1, 3], [1, 2, 3], [1, 2, 5], []]


@given(st.lists(st.tuples(st.sampled_from(PolicyName), st.integers(0, 6)), min_size=1, max_size=5))
def test_the_stage_selects_as_the_policy_does(sequences):
    message = request([BUSHY] * len(sequences), *zip(*sequences, strict=True))
    expected = [
        select(PolicySettings.of_request(name, budget, TREE), *BUSHY, np.zeros(6)).tolist()
        for name, budget in sequences
    ]
    assert built(message) == expected


def test_no_sequences_give_an_empty_reply():
    assert built(request([], [], [])) == []


def test_the_limits_of_the_deployment_hold():
    builder = make_tree_builder(Deployment(tree=TreeConfig(max_depth=1, max_branch=1)))
    reply = builder.build(request([BUSHY], [PolicyName.TOPN], [6]))
    assert reply.selected.tolist() == [1]
