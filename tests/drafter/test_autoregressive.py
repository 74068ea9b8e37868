"""The drafter model: its trees hold what the model says, in every mode, batch and cache state."""

from dataclasses import replace

import numpy as np
import pytest

from canopy.acceptance import accept
from canopy.acceptance.rejection import row_probs
from canopy.config import CacheConfig, DrafterConfig
from canopy.drafter.autoregressive import AutoregressiveSource
from canopy.drafter.growth.distributions import NextTokenDistribution, NodeContext, propose_children
from canopy.drafter.source import DraftSequence, DraftTask
from canopy.models.decoder import load_decoder
from canopy.models.step_batch import Segment, assemble_step
from canopy.sampling import Acceptance, PolicyName, SamplingParams
from canopy.tree.policies import PolicySettings, select

VOCAB = 257
DRAFTER = DrafterConfig(source="autoregressive", model="tiny", row_size=8)
GREEDY = SamplingParams(temperature=0.0)
TOPN = PolicySettings(PolicyName.TOPN, 12, 4, 3, 0.05)
CHAIN = PolicySettings(PolicyName.CHAIN, 5, 5, 1, 0.05)
PROMPTS = [list(b"once upon"), list(b"a"), list(b"the quick brown fox jumps"), list(b"0123456789")]


@pytest.fixture(scope="module")
def decoder(tiny_folder):
    return load_decoder(tiny_folder, "float32", "cpu")


@pytest.fixture
def make_source(decoder):
    """Builds sources; when the test is over, every block of theirs is accounted for."""
    sources = []

    def make(num_tokens=1024, drafter=DRAFTER, max_step_tokens=512, prefix_reuse=False):
        cache = CacheConfig(num_tokens=num_tokens, block_size=4, prefix_reuse=prefix_reuse)
        sources.append(AutoregressiveSource(decoder, VOCAB, cache, drafter, max_step_tokens))
        return sources[-1]

    yield make
    for source in sources:
        source.blocks.check_integrity()
        for sequence_id in range(len(PROMPTS)):
            source.finish(sequence_id)
        assert source.blocks.num_free == source.blocks.num_blocks


def task_of(token_ids, params=GREEDY, settings=TOPN, sequence_id=0):
    return DraftTask(DraftSequence(sequence_id, list(token_ids), params), settings)


def logits_along(decoder, token_ids, num):
    """float32 [num, V] behind each of the last `num` tokens, by one plain pass over all tokens."""
    size = len(token_ids)
    blocks, parents = list(range(-(-size // 4))), np.arange(-1, size - 1)
    segment = Segment(0, blocks, np.array(token_ids), parents, np.arange(size - num, size))
    batch = assemble_step([segment], 4, "cpu")
    return decoder.forward(batch, decoder.new_cache(len(blocks), 4)).numpy()


def log_softmax(logits, temperature=1.0):
    scaled = logits.astype(np.float64) / temperature
    return scaled - scaled.max() - np.log(np.exp(scaled - scaled.max()).sum())


def prefix_of(task, tree, node):
    return [*task.sequence.token_ids, *tree.token_ids[tree.path(node)].tolist()]


def target_verdict(decoder, task, proposal):
    """The drafter as its own target, over a chain."""
    tree, num_tokens = proposal.tree, len(task.sequence.token_ids)
    assert tree.parents.tolist() == list(range(-1, tree.num_nodes))
    logits = logits_along(decoder, prefix_of(task, tree, tree.num_nodes), tree.num_nodes + 1)
    return accept(tree, proposal.rows, logits, task.sequence.params, num_tokens)


def paths(tree):
    return {tuple(tree.token_ids[tree.path(node)]) for node in range(tree.num_nodes + 1)}


def same(proposal, other):
    assert proposal.tree.token_ids.tolist() == other.tree.token_ids.tolist()
    assert proposal.tree.parents.tolist() == other.tree.parents.tolist()
    np.testing.assert_allclose(proposal.log_probs, other.log_probs, atol=1e-4)
    np.testing.assert_allclose(proposal.entropies, other.entropies, atol=1e-4)


def test_edges_and_entropies_are_those_of_the_model(decoder, make_source):
    task = task_of(PROMPTS[0])
    [proposal] = make_source().propose([task])
    tree = proposal.tree
    assert tree.num_nodes == TOPN.node_budget
    for node, children in enumerate(tree.children):
        if not children:
            continue
        expected = log_softmax(logits_along(decoder, prefix_of(task, tree, node), 1)[0])
        best = np.argsort(-expected)[: len(children)]
        assert tree.token_ids[children].tolist() == best.tolist()
        np.testing.assert_allclose(proposal.log_probs[children], expected[best], atol=1e-3)
        entropy = -(np.exp(expected) * expected).sum() / np.log(2)
        assert proposal.entropies[node] == pytest.approx(entropy, abs=1e-3)


@pytest.mark.parametrize("policy", [p for p in PolicyName if p is not PolicyName.OFF])
def test_dropping_nodes_level_by_level_loses_none_that_the_policy_takes(make_source, policy):
    settings = replace(TOPN, name=policy, node_budget=6, threshold=0.01)
    [small] = make_source().propose([task_of(PROMPTS[2], settings=settings)])
    larger = replace(settings, node_budget=60, max_branch=6)
    [large] = make_source().propose([task_of(PROMPTS[2], settings=larger)])
    nodes = select(settings, large.tree.parents, large.log_probs, large.entropies)
    assert paths(small.tree) == paths(large.tree.subtree(nodes))


@pytest.mark.parametrize(
    "params",
    [
        GREEDY,
        SamplingParams(temperature=1.0, seed=3, acceptance=Acceptance.REJECTION),
        SamplingParams(temperature=1.0, seed=3, acceptance=Acceptance.TRAVERSAL),
    ],
    ids=["greedy", "rejection", "traversal"],
)
def test_a_drafter_that_is_the_target_is_accepted_to_the_end(decoder, make_source, params):
    drafter = replace(DRAFTER, row_size=VOCAB)
    for prompt in PROMPTS:
        task = task_of(prompt, params, CHAIN)
        [proposal] = make_source(drafter=drafter).propose([task])
        assert target_verdict(decoder, task, proposal).path == [1, 2, 3, 4, 5]


def test_coupled_children_foresee_the_targets_draws(decoder, make_source):
    drafter = replace(DRAFTER, row_size=VOCAB, coupling=1.0)
    for seed in range(6):
        params = SamplingParams(temperature=1.0, seed=seed, acceptance=Acceptance.COUPLED)
        task = task_of(PROMPTS[2], params, CHAIN)
        [proposal] = make_source(drafter=drafter).propose([task])
        assert target_verdict(decoder, task, proposal).path == [1, 2, 3, 4, 5]


def test_drawn_children_come_from_rows_that_sum_to_one(decoder, make_source):
    for seed in range(2):
        params = SamplingParams(temperature=0.8, seed=seed, acceptance=Acceptance.REJECTION)
        task = task_of(PROMPTS[0], params)
        [proposal] = make_source().propose([task])
        tree = proposal.tree
        for node, children in enumerate(tree.children):
            row = proposal.rows[node]
            if children:
                assert len(row.token_ids) == DRAFTER.row_size
                assert np.exp(row.log_probs.astype(np.float64)).sum() == pytest.approx(1.0)
                assert set(tree.token_ids[children]) <= set(row.token_ids)
                assert len(set(tree.token_ids[children])) == len(children)
                expected = log_softmax(
                    logits_along(decoder, prefix_of(task, tree, node), 1)[0], 0.8
                )
                head = np.exp(expected[row.token_ids])
                np.testing.assert_allclose(row_probs(row), head / head.sum(), atol=1e-4)


def test_no_two_rounds_share_a_draw():
    head = NextTokenDistribution(np.arange(60), np.full(60, -np.log(60.0)), np.log2(60.0))
    params = SamplingParams(temperature=1.0, acceptance=Acceptance.REJECTION)
    draws = set()
    for num_tokens in range(10, 14):  # rounds that draw for one position, at one node's number
        place = NodeContext(DraftSequence(0, [1] * num_tokens, params), 3, 15)
        offer = propose_children(head, place, replace(DRAFTER, row_size=60))
        draws.add(tuple(offer.token_ids(4)))
    assert len(draws) == 4


def test_drawn_slots_are_rated_by_a_bound_and_not_by_their_token(make_source):
    differs = 0
    for seed in range(6):
        params = SamplingParams(temperature=1.0, seed=seed, acceptance=Acceptance.REJECTION)
        [proposal] = make_source().propose([task_of(PROMPTS[0], params)])
        for node, children in enumerate(proposal.tree.children):
            bounds = np.sort(proposal.rows[node].log_probs)[::-1][: len(children)]
            np.testing.assert_array_equal(proposal.log_probs[children], bounds)
            places = [
                proposal.rows[node].token_ids.tolist().index(proposal.tree.token_ids[child])
                for child in children
            ]
            differs += any(proposal.rows[node].log_probs[places] != bounds)
    assert differs > 0


def test_a_batch_proposes_what_each_sequence_alone_does(make_source):
    all_params = [
        GREEDY,
        SamplingParams(temperature=0.9, seed=1, acceptance=Acceptance.COUPLED),
        SamplingParams(temperature=0.7, seed=2, acceptance=Acceptance.REJECTION),
        SamplingParams(temperature=1.2, seed=3, acceptance=Acceptance.TARGET_ONLY),
    ]
    settings = [TOPN, CHAIN, replace(TOPN, name=PolicyName.THRESHOLD), replace(TOPN, max_depth=0)]
    tasks = [
        task_of(prompt, params, limits, sequence_id)
        for sequence_id, (prompt, params, limits) in enumerate(
            zip(PROMPTS, all_params, settings, strict=True)
        )
    ]
    together = make_source().propose(tasks)
    for task, proposal in zip(tasks, together, strict=True):
        same(proposal, make_source().propose([task])[0])
    assert together[3].tree.num_nodes == 0


@pytest.mark.parametrize("prefix_reuse", [False, True])
def test_growing_with_the_sequence_equals_starting_late(make_source, prefix_reuse):
    source, task = make_source(prefix_reuse=prefix_reuse), task_of(PROMPTS[0])
    for grown in (b"", b"x", b"", b" a time there", b"was"):
        task.sequence.token_ids.extend(grown)
        [proposal] = source.propose([task])
        source.blocks.check_integrity()
    same(proposal, make_source().propose([task])[0])


def test_a_long_context_is_caught_up_over_several_steps_and_delays_no_other(make_source):
    source = make_source(max_step_tokens=8)
    long, short = task_of(PROMPTS[2]), task_of(PROMPTS[1], sequence_id=1)
    sizes = [[p.tree.num_nodes for p in source.propose([long, short])] for _ in range(4)]
    assert [short_size for _, short_size in sizes] == [12] * 4
    assert [long_size for long_size, _ in sizes] == [0, 0, 0, 12]


def test_without_blocks_a_sequence_brings_its_anchor_alone(make_source):
    source = make_source(num_tokens=40)
    first, second = task_of(PROMPTS[0]), task_of(PROMPTS[2], sequence_id=1)
    sizes = [proposal.tree.num_nodes for proposal in source.propose([first, second])]
    assert sizes == [12, 0]
    source.blocks.check_integrity()
    source.finish(0)
    assert source.propose([second])[0].tree.num_nodes == 12


def test_beyond_the_drafters_context_nothing_is_proposed(decoder, make_source):
    limit = decoder.config.max_position_embeddings
    source = make_source()
    task = task_of([1] * (limit - TOPN.max_depth))
    assert source.propose([task])[0].tree.num_nodes > 0
    task.sequence.token_ids.append(1)
    assert source.propose([task])[0].tree.num_nodes == 0


def test_no_node_stands_under_a_stop_token(make_source):
    [free] = make_source().propose([task_of(PROMPTS[0])])
    inner = int(free.tree.token_ids[free.tree.parents[-1]])
    params = replace(GREEDY, stop_token_ids=(inner,))
    [tree] = [p.tree for p in make_source().propose([task_of(PROMPTS[0], params)])]
    assert inner in tree.token_ids[1:]
    assert all(tree.token_ids[parent] != inner for parent in tree.parents[1:] if parent > 0)
