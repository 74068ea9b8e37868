"""The block drafter as source: context windows, prefixes, and what a failing pass costs."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from training.drafter_corpus import DRAFT_IDS, make_drafter

from canopy.config import DrafterConfig
from canopy.drafter.block.combined_weights import load_combined_weights, save_combined_weights
from canopy.drafter.block.drafter_model import BlockDrafterModel, LoadedBlockDrafter
from canopy.drafter.block.markov_head import markov_head
from canopy.drafter.block.prefix_cache import BLOCK, PrefixBlocks
from canopy.drafter.block.source import BlockSource
from canopy.drafter.lookup.source import LookupSource
from canopy.drafter.source import DraftSequence, DraftTask
from canopy.errors import InvalidDeployment
from canopy.models.block_drafter.runner import TorchBlockRunner
from canopy.protocol.hidden_states import HiddenStates
from canopy.sampling import Acceptance, PolicyName, SamplingParams
from canopy.tree.policies import PolicySettings
from canopy_kernels.ngram.continuations import FEATURES, NUM_FEATURES

TOKENS = [5, 6, 7, 5, 6, 9, 5, 6]


class CountedRunner(TorchBlockRunner):
    def __init__(self, drafter):
        super().__init__(drafter, "cpu")
        self.batches = []
        self.is_broken = False

    def propose(self, inputs):
        self.batches.append(len(inputs.anchors))
        if self.is_broken:
            raise RuntimeError("broken")
        return super().propose(inputs)


@pytest.fixture
def loaded(tiny_folder):
    drafter = make_drafter(tiny_folder).eval()
    embedding = drafter.embedding.half().numpy()
    return LoadedBlockDrafter(
        drafter.config, CountedRunner(drafter), embedding, markov_head(drafter)
    )


def source_of(loaded, with_lookup=False):
    return BlockSource(model_of(loaded), 0.7, LookupSource(1, 4) if with_lookup else None)


def model_of(loaded):
    return BlockDrafterModel(loaded, DrafterConfig.num_candidates)


def task_of(sequence_id, tokens=TOKENS, temperature=0.0, acceptance=Acceptance.COUPLED):
    params = SamplingParams(temperature=temperature, acceptance=acceptance, seed=3)
    sequence = DraftSequence(sequence_id, list(tokens), params)
    return DraftTask(sequence, PolicySettings(PolicyName.TOPN, 12, 6, 4, 0.05))


def features_of(seed, start, end, size=96):
    states = np.random.default_rng(seed).normal(size=(end, size)).astype(np.float16)
    return HiddenStates(start, states[start:end])


def same(a, b):
    np.testing.assert_array_equal(a.tree.token_ids, b.tree.token_ids)
    np.testing.assert_allclose(a.log_probs, b.log_probs, rtol=1e-4, atol=1e-5)


def test_one_pass_serves_all_and_company_does_not_matter(loaded):
    together, alone = source_of(loaded), source_of(loaded)
    tasks = [task_of(1), task_of(2, [*TOKENS, 8, 9])]
    parts = {1: features_of(1, 0, 7), 2: features_of(2, 0, 9)}
    together.take_hidden_states(parts)
    found = together.propose(tasks)
    assert loaded.runner.batches == [2]
    for task, proposal in zip(tasks, found, strict=True):
        alone.take_hidden_states({task.sequence.sequence_id: parts[task.sequence.sequence_id]})
        same(alone.propose([task])[0], proposal)
        assert proposal.tree.num_nodes == 12
        assert proposal.tree.depths.max() <= 4
        assert set(proposal.tree.token_ids[1:].tolist()) <= set(DRAFT_IDS.tolist())


def test_a_context_that_grew_is_one_that_came_at_once(loaded):
    grown, whole, again = source_of(loaded), source_of(loaded), source_of(loaded)
    task = task_of(1)
    for start, end in ((0, 3), (3, 5), (5, 7)):
        grown.take_hidden_states({1: features_of(1, start, end)})
        grown.propose([task])
    for part in (features_of(9, 0, 6), features_of(1, 0, 7)):  # computed anew after a preemption
        again.take_hidden_states({1: part})
        again.propose([task])
    whole.take_hidden_states({1: features_of(1, 0, 7)})
    [expected] = whole.propose([task])
    for source in (grown, again):
        same(source.propose([task])[0], expected)


def test_without_the_last_position_there_is_nothing_to_offer(loaded):
    source = source_of(loaded)
    assert source.propose([task_of(1)])[0].tree.num_nodes == 0
    source.take_hidden_states({1: features_of(1, 0, 6)})
    assert source.propose([task_of(1)])[0].tree.num_nodes == 0
    source.take_hidden_states({1: features_of(1, 6, 7)})
    assert source.propose([task_of(1)])[0].tree.num_nodes == 12
    source.finish(1)
    assert source.propose([task_of(1)])[0].tree.num_nodes == 0


def test_the_window_bounds_what_is_kept(loaded):
    source = source_of(loaded)
    tokens = list(range(100)) * 4
    source.take_hidden_states({1: features_of(1, 0, 300)})
    source.propose([task_of(1, tokens[:301])])
    source.take_hidden_states({1: features_of(1, 300, 399)})
    assert source.propose([task_of(1, tokens[:400])])[0].tree.num_nodes == 12
    context = source._model._contexts[1]
    assert (len(context.key_values), context.end) == (loaded.config.window, 399)


def test_a_prefix_that_the_target_reuses_is_known_from_another_sequence(loaded):
    tokens = np.random.default_rng(0).integers(0, 200, 60).tolist()
    whole, reusing = source_of(loaded), source_of(loaded)
    whole.take_hidden_states({1: features_of(1, 0, 59)})
    [expected] = whole.propose([task_of(1, tokens)])
    for start in range(0, 50, 7):  # as a first sequence grows
        reusing.take_hidden_states({1: features_of(1, start, min(start + 7, 50))})
        reusing.propose([task_of(1, tokens[:51])])
    reusing.finish(1)
    reusing.take_hidden_states({2: features_of(1, 48, 59), 3: features_of(1, 48, 59)})
    other = [9, *tokens[1:]]
    known, unknown = reusing.propose([task_of(2, tokens), task_of(3, other)])
    same(known, expected)
    assert reusing._model._contexts[2].first == 0
    assert reusing._model._contexts[3].first == 48
    assert unknown.tree.num_nodes == 12


def test_the_blocks_used_last_stay():
    blocks = PrefixBlocks(max_blocks=2)
    names = [bytes([n]) for n in range(3)]
    values = np.arange(3 * BLOCK)
    blocks.keep(names[:2], 0, 0, values)
    assert len(blocks.before(names[:1], 99)) == 1
    blocks.keep(names, 0, 2 * BLOCK, values)
    assert blocks.before(names[:2], 99) == []
    np.testing.assert_array_equal(blocks.before(names[2:], 99)[0], values[2 * BLOCK :])
    assert blocks.before(names[2:], BLOCK - 1) == []


def test_what_followed_the_latest_match_reaches_the_rows(loaded, tiny_folder):
    drafter = make_drafter(tiny_folder).eval()
    with torch.no_grad():
        drafter.copy.weight.copy_(1e3 * torch.eye(drafter.config.hidden_size))
    copying = replace(loaded, runner=CountedRunner(drafter))
    source, text = source_of(copying), [3, 50, 60, 70, 80, 90, 3, 50]
    source.take_hidden_states({1: features_of(1, 0, 7)})
    distributions = source._model.distributions([task_of(1, text).sequence])[1]
    assert [int(distributions.after([60, 70, 80][:k], 1)[0][0]) for k in range(4)] == [
        60,
        70,
        80,
        90,
    ]


@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_both_sources_grow_one_tree_of_distinct_paths(loaded, temperature):
    source = source_of(loaded, with_lookup=True)
    source.take_hidden_states({1: features_of(1, 0, 7)})
    [proposal] = source.propose([task_of(1, temperature=temperature)])
    tree = proposal.tree
    paths = {tuple(tree.token_ids[tree.path(node)]) for node in range(13)}
    assert len(paths) == 13
    sums = np.bincount(tree.parents[1:], np.exp(proposal.log_probs[1:].astype(float)))
    assert sums.max() <= 1.0 + 1e-5


def test_a_failing_pass_costs_the_drafters_part_only(loaded):
    source = source_of(loaded, with_lookup=True)
    [lookup_alone] = LookupSource(1, 4).propose([task_of(1)])
    source.take_hidden_states({1: features_of(1, 0, 7)})
    loaded.runner.is_broken = True
    same(source.propose([task_of(1)])[0], lookup_alone)
    assert source.num_failures == 1
    loaded.runner.is_broken = False
    assert source.propose([task_of(1)])[0].tree.num_nodes == 12


def test_with_joint_weights_the_drafter_stands_among_lookups_candidates(loaded):
    weights = np.zeros(NUM_FEATURES)
    weights[[FEATURES.index("drafted_odds"), FEATURES.index("match_share")]] = 1.0, 0.1
    lookup = LookupSource(1, 4)
    lookup.join(weights)
    source = BlockSource(model_of(loaded), 0.7, lookup, is_joint=True)
    source.take_hidden_states({1: features_of(1, 0, 7)})
    [proposal] = source.propose([task_of(1)])
    tree = proposal.tree
    sums = np.bincount(tree.parents[1:], np.exp(proposal.log_probs[1:].astype(float)))
    assert sums.max() <= 1.0 + 1e-6
    below_anchor = {int(tree.token_ids[node]) for node in tree.children[0]}
    best = int(source._model.distributions([task_of(1).sequence])[1].after([], 1)[0][0])
    assert best in below_anchor
    source.finish(1)
    assert source.propose([task_of(1)])[0].tree.num_nodes > 0  # lookup goes on alone


def test_joint_weights_are_read_as_written_and_others_refused(tmp_path):
    weights = np.random.default_rng(0).normal(size=NUM_FEATURES)
    assert load_combined_weights(tmp_path) is None
    save_combined_weights(weights, tmp_path)
    np.testing.assert_array_equal(load_combined_weights(tmp_path), weights)
    (tmp_path / "survival.json").write_text('{"one": 1.0}')
    with pytest.raises(InvalidDeployment, match="other features"):
        load_combined_weights(tmp_path)
