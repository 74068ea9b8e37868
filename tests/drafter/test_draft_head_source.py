"""DSpark and DFlash heads as source: their distributions along paths, trees, lookup and faults."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from golden_heads import golden_of, load

from canopy.config import CacheConfig, DrafterConfig
from canopy.drafter.block.source import BlockSource
from canopy.drafter.draft_heads.block import BlockHeadModel
from canopy.drafter.lookup.source import LookupSource
from canopy.drafter.source import DraftSequence, DraftTask
from canopy.protocol.hidden_states import HiddenStates
from canopy.sampling import PolicyName, SamplingParams
from canopy.tree.policies import PolicySettings

DRAFTER = DrafterConfig(num_candidates=512)
SETTINGS = PolicySettings(PolicyName.TOPN, 12, 6, 4, 0.05)
GREEDY = SamplingParams(temperature=0.0)
SPARK, FLASH = "dspark-deepspec", "dflash-zlab"
HEADS = {name: golden_of(name) for name in (SPARK, FLASH, "dspark-speculators")}


def model_of(name=SPARK, prefix_reuse=False, max_step_tokens=512, num_tokens=512, **options):
    cache = CacheConfig(num_tokens=num_tokens, block_size=4, prefix_reuse=prefix_reuse)
    return BlockHeadModel(load(name), cache, DRAFTER, max_step_tokens, **options)


def prompt_of(name):
    return [*HEADS[name]["prompt_ids"].tolist(), int(HEADS[name]["first_token"])]


def sequence_of(token_ids, params=GREEDY, sequence_id=0):
    return DraftSequence(sequence_id, list(token_ids), params)


def states_of(name):
    return HEADS[name]["target_features"].numpy()


def distributions_of(model, sequence, states, start=0):
    model.take_hidden_states({sequence.sequence_id: HiddenStates(start, states)})
    return model.distributions([sequence])[sequence.sequence_id]


def log_softmax(logits):
    return torch.log_softmax(logits.double(), dim=-1).numpy()


def assert_distribution(found, expected, tolerance=1e-3):
    token_ids, log_probs, _ = found
    np.testing.assert_allclose(log_probs, expected[token_ids], atol=tolerance)
    assert log_probs.tolist() == sorted(log_probs.tolist(), reverse=True)


def test_a_path_has_the_distributions_of_the_reference():
    golden = HEADS[SPARK]
    model = model_of(SPARK, reads_confidence=False)
    distributions = distributions_of(model, sequence_of(prompt_of(SPARK)), states_of(SPARK))
    path = golden["path_tokens"].tolist()
    assert distributions.num_rows == 7
    for depth, expected in enumerate(log_softmax(golden["path_corrected_logits"])):
        assert_distribution(distributions.after(path[:depth], 40), expected)
    for parent, expected in zip(
        golden["tree_parents_pos2"].tolist(), log_softmax(golden["tree_logits_pos2"]), strict=True
    ):
        assert_distribution(distributions.after([path[0], parent], 40), expected)


def test_temperature_comes_after_the_markov_head():
    golden, params = HEADS[SPARK], SamplingParams(temperature=0.7)
    model = model_of(SPARK, reads_confidence=False)
    distributions = distributions_of(model, sequence_of(prompt_of(SPARK), params), states_of(SPARK))
    greedy = golden["greedy_tokens"].tolist()
    for depth, expected in enumerate(golden["draft_probs_T0.7"].double().log().numpy()):
        assert_distribution(distributions.after(greedy[:depth], 20), expected)


def test_confidence_lowers_a_nodes_children_together():
    golden, sequence = HEADS[SPARK], sequence_of(prompt_of(SPARK))
    plain, sure = (
        distributions_of(model_of(SPARK, reads_confidence=r), sequence, states_of(SPARK))
        for r in (False, True)
    )
    greedy = golden["greedy_tokens"].tolist()
    for depth, confidence in enumerate(golden["confidence_probs"].tolist()):
        ours, theirs = (distributions.after(greedy[:depth], 8) for distributions in (sure, plain))
        np.testing.assert_array_equal(ours[0], theirs[0])
        np.testing.assert_allclose(ours[1] - theirs[1], np.log(confidence), atol=1e-3)


def test_fewer_candidates_leave_a_tail():
    golden = HEADS[SPARK]
    model = model_of(SPARK, reads_confidence=False)
    model._drafter = replace(DRAFTER, num_candidates=32)
    distributions = distributions_of(model, sequence_of(prompt_of(SPARK)), states_of(SPARK))
    token_ids, log_probs, _ = distributions.after([], 64)
    assert len(token_ids) == 32
    assert np.exp(log_probs.astype(float)).sum() < 1.0
    base = golden["base_logits"][0]
    assert set(token_ids.tolist()) == set(base.topk(32).indices.tolist())


def test_marginals_do_not_depend_on_the_path():
    golden = HEADS[FLASH]
    distributions = distributions_of(
        model_of(FLASH), sequence_of(prompt_of(FLASH)), states_of(FLASH)
    )
    assert distributions.num_rows == 6
    for depth, expected in enumerate(log_softmax(golden["draft_logits"])):
        assert_distribution(distributions.after([3] * depth, 40), expected)


def test_a_reduced_vocabulary_drafts_target_tokens():
    name = "dspark-speculators"
    distributions = distributions_of(model_of(name), sequence_of(prompt_of(name)), states_of(name))
    greedy = HEADS[name]["greedy_tokens"].tolist()
    assert [int(distributions.after(greedy[:k], 1)[0][0]) for k in range(7)] == greedy


def test_one_pass_serves_all_and_company_does_not_matter():
    lengths, states = [18, 6, 11], states_of(SPARK)
    sequences = [sequence_of(prompt_of(SPARK)[:n], sequence_id=i) for i, n in enumerate(lengths)]
    together = model_of(max_step_tokens=512)
    together.take_hidden_states(
        {i: HiddenStates(0, states[: n - 1]) for i, n in enumerate(lengths)}
    )
    found = together.distributions(sequences)
    for sequence, n in zip(sequences, lengths, strict=True):
        alone = distributions_of(model_of(), sequence, states[: n - 1])
        for path in ([], [5], [5, 9]):
            ours, theirs = found[sequence.sequence_id].after(path, 8), alone.after(path, 8)
            np.testing.assert_array_equal(ours[0], theirs[0])
            np.testing.assert_allclose(ours[1], theirs[1], atol=1e-4)


def test_a_shared_prefix_needs_no_states():
    model, states = model_of(prefix_reuse=True), states_of(SPARK)
    first = distributions_of(model, sequence_of(prompt_of(SPARK)), states)
    other = sequence_of(prompt_of(SPARK), sequence_id=1)
    second = distributions_of(model, other, states[16:], 16)
    np.testing.assert_allclose(second.after([], 8)[1], first.after([], 8)[1], atol=1e-5)
    for sequence_id in (0, 1):
        model.finish(sequence_id)
    model.contexts.blocks.check_integrity()
    assert model.contexts.blocks.num_used == 0


def test_without_its_whole_context_a_sequence_waits():
    model, sequence = model_of(max_step_tokens=9), sequence_of(prompt_of(SPARK))
    model.take_hidden_states({0: HiddenStates(0, states_of(SPARK))})
    assert model.distributions([sequence]) == {}
    assert set(model.distributions([sequence])) == {0}
    assert model_of(num_tokens=8).distributions([sequence]) == {}


def task_of(name=SPARK, params=GREEDY):
    return DraftTask(sequence_of(prompt_of(name), params), SETTINGS)


def paths_of(proposal):
    tree = proposal.tree
    return [tuple(tree.token_ids[tree.path(node)].tolist()) for node in range(1, len(tree.parents))]


@pytest.mark.parametrize("name", [SPARK, FLASH])
def test_trees_are_the_likeliest_nodes_of_all(name):
    """Best first means that no node outside is likelier than one inside."""
    source, task = BlockSource(model_of(name), 0.7), task_of(name)
    source.take_hidden_states({0: HiddenStates(0, states_of(name))})
    [proposal] = source.propose([task])
    distributions, tree = source._model.distributions([task.sequence])[0], proposal.tree
    assert tree.num_nodes == SETTINGS.node_budget
    scores = {(): 0.0}
    for path in paths_of(proposal):
        token_ids, log_probs, _ = distributions.after(path[:-1], 16)
        place = token_ids.tolist().index(path[-1])
        assert place < SETTINGS.max_branch
        scores[path] = scores[path[:-1]] + float(log_probs[place])
    least = min(scores.values())
    for path in scores:
        if len(path) < distributions.num_rows and len(path) < SETTINGS.max_depth:
            token_ids, log_probs, _ = distributions.after(path, SETTINGS.max_branch)
            for token, log_prob in zip(token_ids.tolist(), log_probs.tolist(), strict=True):
                assert (*path, token) in scores or scores[path] + log_prob <= least + 1e-5


@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_a_head_and_lookup_grow_one_tree(temperature):
    params = SamplingParams(temperature=temperature, seed=3)
    source = BlockSource(model_of(FLASH), 0.7, LookupSource(1, 4))
    source.take_hidden_states({0: HiddenStates(0, states_of(FLASH))})
    [proposal] = source.propose([task_of(FLASH, params)])
    tree = proposal.tree
    assert len(set(paths_of(proposal))) == tree.num_nodes == 12
    sums = np.bincount(tree.parents[1:], np.exp(proposal.log_probs[1:].astype(float)))
    assert sums.max() <= 1.0 + 1e-5


def test_states_that_are_no_numbers_cost_the_heads_part_only():
    source = BlockSource(model_of(FLASH), 0.7, LookupSource(1, 4))
    source.take_hidden_states({0: HiddenStates(0, np.full_like(states_of(FLASH), np.nan))})
    task = task_of(FLASH)
    [expected] = LookupSource(1, 4).propose([task])
    [found] = source.propose([task])
    assert source.num_failures == 1
    np.testing.assert_array_equal(found.tree.token_ids, expected.tree.token_ids)
