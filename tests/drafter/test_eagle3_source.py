"""An EAGLE-3 head as source: the reference's trees, batches, shared prefixes and lost states."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from golden_heads import golden_of, load

from canopy.acceptance import accept
from canopy.config import CacheConfig, DrafterConfig
from canopy.drafter.draft_heads.eagle3 import Eagle3Source
from canopy.drafter.source import DraftSequence, DraftTask
from canopy.protocol.hidden_states import HiddenStates
from canopy.sampling import Acceptance, PolicyName, SamplingParams
from canopy.tree.policies import PolicySettings

HEAD = "eagle3-safeai"
DRAFTER = DrafterConfig(row_size=16)
GREEDY = SamplingParams(temperature=0.0)
# Four children, four nodes of a level expanded, five levels, fifteen nodes besides the anchor.
REFERENCE = PolicySettings(PolicyName.TOPN, 15, 5, 4, 0.05)
GOLDEN = golden_of(HEAD)
PROMPT, FIRST = GOLDEN["prompt_ids"].tolist(), int(GOLDEN["first_token"])
STATES = GOLDEN["target_features"].numpy().astype(np.float32)
NEXT = GOLDEN["round2_accepted"].tolist()[1:] + GOLDEN["round2_bonus"].tolist()


@pytest.fixture(scope="module")
def head():
    return load(HEAD)


@pytest.fixture
def make_source(head):
    """Builds sources; when the test is over, every block of theirs is accounted for."""
    sources = []

    def make(num_tokens=512, max_step_tokens=512, prefix_reuse=False):
        cache = CacheConfig(num_tokens=num_tokens, block_size=4, prefix_reuse=prefix_reuse)
        sources.append(Eagle3Source(head, cache, DRAFTER, max_step_tokens))
        return sources[-1]

    yield make
    for source in sources:
        blocks = source.contexts.blocks
        blocks.check_integrity()
        for sequence_id in range(8):
            source.finish(sequence_id)
        assert blocks.num_free == blocks.num_blocks


def task_of(token_ids=(*PROMPT, FIRST), settings=REFERENCE, params=GREEDY, sequence_id=0):
    return DraftTask(DraftSequence(sequence_id, list(token_ids), params), settings)


def proposal_of(source, task, states=STATES, start=0):
    source.take_hidden_states({task.sequence.sequence_id: HiddenStates(start, states)})
    return source.propose([task])[0]


def scored_paths(proposal):
    """The path of every node, and the sum of its log-probs."""
    tree, found = proposal.tree, {(): 0.0}
    for node in range(1, tree.num_nodes + 1):
        path = tree.path(node)
        found[tuple(tree.token_ids[path].tolist())] = float(proposal.log_probs[path].sum())
    return found


def golden_paths(prefix):
    tokens, parents = (GOLDEN[f"{prefix}tree_{name}"].tolist() for name in ("tokens", "parents"))
    paths = [()]
    for token, parent in zip(tokens[1:], parents[1:], strict=True):
        paths.append((*paths[parent], token))
    return dict(zip(paths, GOLDEN[f"{prefix}tree_scores"].tolist(), strict=True))


def assert_same_trees(ours, theirs):
    assert ours.keys() == theirs.keys()
    assert all(ours[path] == pytest.approx(theirs[path], abs=2e-3) for path in ours)


def test_topn_selects_the_trees_of_the_reference(make_source):
    source, task = make_source(), task_of()
    assert_same_trees(scored_paths(proposal_of(source, task)), golden_paths(""))
    task.sequence.token_ids.extend(NEXT)
    states = GOLDEN["round2_features"].numpy()
    found = proposal_of(source, task, states, len(PROMPT))
    assert_same_trees(scored_paths(found), golden_paths("round2_"))
    assert_same_trees(scored_paths(source.propose([task])[0]), golden_paths("round2_"))


@pytest.mark.parametrize("policy", [p for p in PolicyName if p is not PolicyName.OFF])
def test_every_policy_grows_a_tree_within_its_limits(make_source, policy):
    limits = {"node_budget": 9, "max_depth": 4, "threshold": 0.01, "entropy_bits": (1.0, 10.0)}
    settings = replace(REFERENCE, name=policy, **limits)
    tree = proposal_of(make_source(), task_of(settings=settings)).tree
    assert 1 <= tree.num_nodes <= 9
    assert tree.depths.max() <= 4
    assert np.bincount(tree.parents[1:]).max() <= (1 if policy is PolicyName.CHAIN else 4)
    if policy is PolicyName.CHAIN:
        assert tree.token_ids[1:].tolist() == golden_of(HEAD)["chain_tokens"].tolist()[:4]


def test_a_step_of_many_sequences_is_the_same_as_one_for_each(make_source):
    lengths = [18, 5, 11]
    tasks = [task_of([*PROMPT, FIRST][:n], sequence_id=i) for i, n in enumerate(lengths)]
    pairs = list(zip(tasks, lengths, strict=True))
    alone = [proposal_of(make_source(), task, STATES[: n - 1]) for task, n in pairs]
    source = make_source()
    source.take_hidden_states({i: HiddenStates(0, STATES[: n - 1]) for i, n in enumerate(lengths)})
    for together, single in zip(source.propose(tasks), alone, strict=True):
        assert_same_trees(scored_paths(together), scored_paths(single))


def test_a_long_context_is_taken_up_over_several_steps(make_source):
    source, task = make_source(max_step_tokens=7), task_of()
    source.take_hidden_states({0: HiddenStates(0, STATES)})
    sizes = [source.propose([task])[0].tree.num_nodes for _ in range(3)]
    assert sizes == [0, 0, 15]


def test_a_shared_prefix_needs_no_states(make_source):
    """The target leaves the last matched block out: the row before it reads the token behind."""
    source = make_source(prefix_reuse=True)
    expected = proposal_of(source, task_of())
    states = np.concatenate([np.full((12, STATES.shape[1]), np.nan), STATES[12:]])
    other = task_of(sequence_id=1)
    found = proposal_of(source, other, states[12:], 12)
    assert_same_trees(scored_paths(found), scored_paths(expected))
    shared = set(source.contexts.blocks.block_table(0)) & set(source.contexts.blocks.block_table(1))
    assert len(shared) >= 3


def test_states_that_never_come_shorten_the_context(make_source):
    """Positions count from where the context begins, and nothing is mixed with whole ones."""
    source = make_source(prefix_reuse=True)
    cut = proposal_of(source, task_of(), STATES[8:], 8)
    whole = proposal_of(source, task_of(sequence_id=1))
    assert_same_trees(scored_paths(whole), golden_paths(""))
    alone = proposal_of(make_source(), task_of([*PROMPT[8:], FIRST]), STATES[8:])
    assert_same_trees(scored_paths(cut), scored_paths(alone))


def test_without_room_or_states_the_anchor_comes_alone(make_source):
    source = make_source(num_tokens=20)
    assert proposal_of(source, task_of()).tree.num_nodes == 0  # none for the tree
    assert make_source().propose([task_of()])[0].tree.num_nodes == 0


@pytest.mark.parametrize("mode", [Acceptance.REJECTION, Acceptance.TRAVERSAL])
def test_drawn_children_bring_the_rows_they_are_from(make_source, mode):
    params = SamplingParams(temperature=0.8, acceptance=mode, seed=5)
    proposal = proposal_of(make_source(), task_of(params=params))
    tree = proposal.tree
    for node in range(1, tree.num_nodes + 1):
        assert tree.token_ids[node] in proposal.rows[tree.parents[node]].token_ids
    logits = np.random.default_rng(0).normal(size=(tree.num_nodes + 1, 512)).astype(np.float32)
    assert accept(tree, proposal.rows, logits, params, 18) is not None


def test_coupled_children_are_target_tokens(make_source, head):
    params = SamplingParams(temperature=0.8, acceptance=Acceptance.COUPLED, seed=5)
    tree = proposal_of(make_source(), task_of(params=params)).tree
    assert set(tree.token_ids[1:].tolist()) <= set(head.draft_ids.tolist())


def test_in_bfloat16_the_trees_are_close(make_source):
    half = load(HEAD, torch.bfloat16)
    source = Eagle3Source(half, CacheConfig(num_tokens=512), DRAFTER, 512)
    found, expected = scored_paths(proposal_of(source, task_of())), golden_paths("")
    assert len(found.keys() & expected.keys()) >= 10
