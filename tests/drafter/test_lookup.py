"""Lookup: what the sequence repeats is proposed, and the index is what a rescan would find."""

import numpy as np
import pytest
from answers import answer_of
from hypothesis import given
from hypothesis import strategies as st

from canopy.drafter.lookup.ngram_store import NgramStore
from canopy.drafter.lookup.source import LookupSource
from canopy.drafter.lookup.suffix_index import SuffixIndex
from canopy.drafter.source import DraftSequence, DraftTask
from canopy.sampling import PolicyName, SamplingParams
from canopy.tree.policies import PolicySettings, select
from canopy_kernels.ngram.candidates import (
    DECAY,
    MAX_OCCURRENCES,
    NOVELTY,
    Drafted,
    nothing_drafted,
)
from canopy_kernels.ngram.continuations import (
    FEATURES,
    NUM_FEATURES,
    candidate_features,
    continuations,
)
from canopy_kernels.ngram.ngram_table import ANSWER_WEIGHT, empty_ngram_table
from canopy_training.lookup.ngrams import count

MAX_MATCH = 4
tokens = st.lists(st.integers(0, 3), min_size=1, max_size=40)
policies = st.sampled_from([p for p in PolicyName if p is not PolicyName.OFF])


def task_of(token_ids, policy=PolicyName.TOPN, budget=8, max_depth=6, max_branch=4, stops=()):
    sequence = DraftSequence(1, list(token_ids), SamplingParams(stop_token_ids=stops))
    return DraftTask(sequence, PolicySettings(policy, budget, max_depth, max_branch, 0.05))


def proposal_of(token_ids, **options):
    [proposal] = LookupSource(1, MAX_MATCH).propose([task_of(token_ids, **options)])
    return proposal


def paths(tree):
    return [tuple(tree.token_ids[tree.path(node)]) for node in range(tree.num_nodes + 1)]


def rescanned_followers(token_ids, suffix, max_match):
    """What followed the last n tokens of `suffix`, by looking everywhere; longest n first."""
    found = []
    for length in range(min(len(suffix), max_match), 0, -1):
        gram = suffix[-length:]
        ends = range(length, len(token_ids))
        followers = [token_ids[end] for end in ends if token_ids[end - length : end] == gram]
        if followers:
            found.append((length, followers))
    return found


def blended(matches, min_match):
    """The definition of the sequence's estimates."""
    estimates, left = {}, 1.0
    for length, followers in matches:
        if length >= min_match:
            recent = followers[::-1][:MAX_OCCURRENCES]
            weights = [DECAY**age for age in range(len(recent))]
            novelty = len(set(recent)) * NOVELTY[min(length, 3) - 1]
            trust = sum(weights) / (sum(weights) + novelty)
            for token, weight in zip(recent, weights, strict=True):
                share = weight / sum(weights)
                estimates[token] = estimates.get(token, 0.0) + left * trust * share
            left *= 1.0 - trust
    return estimates


def known_after(index, path, min_match=1):
    """Token ids and estimates by the kernel, without a store."""
    suffix = index.suffix(path, index.max_match)
    token_ids, log_probs, _ = continuations(
        index.table, empty_ngram_table(), nothing_drafted(), suffix, 1, np.zeros(0), min_match
    )
    return dict(zip(token_ids.tolist(), np.exp(log_probs).tolist(), strict=True))


@given(
    st.lists(tokens, min_size=1, max_size=4),
    st.lists(st.integers(0, 3), max_size=5),
    st.integers(1, 6),
    st.integers(1, 3),
)
def test_the_index_finds_what_a_rescan_finds(parts, path, max_match, min_match):
    index = SuffixIndex(max_match)
    for part in parts:
        index.extend(part)
    whole = [token for part in parts for token in part]
    suffix = index.suffix(path, max_match).tolist()
    assert suffix == (whole + path)[-max_match:]
    expected = blended(rescanned_followers(whole, suffix, max_match), min_match)
    assert known_after(index, path, min_match) == pytest.approx(expected)
    assert sum(expected.values()) < 1.0


def test_an_index_that_had_to_grow_forgets_nothing():
    text = np.random.default_rng(0).integers(0, 5, 3000).tolist()
    grown = SuffixIndex(MAX_MATCH)
    for start in range(0, len(text), 7):
        grown.extend(text[start : start + 7])
    for place in range(50, 3000, 97):
        whole = rescanned_followers(text, text[place - 4 : place], MAX_MATCH)
        assert known_after(grown, text[place - 4 : place]) == pytest.approx(blended(whole, 1))


@given(tokens, tokens, policies)
def test_growing_with_the_sequence_equals_starting_late(prompt, answer, policy):
    source, task = LookupSource(1, MAX_MATCH), task_of(prompt, policy)
    for token in answer:
        source.propose([task])
        task.sequence.token_ids.append(token)
    [grown] = source.propose([task])
    late = proposal_of(prompt + answer, policy=policy)
    assert paths(grown.tree) == paths(late.tree)
    np.testing.assert_array_equal(grown.log_probs, late.log_probs)


@given(tokens, policies, st.integers(0, 9), st.integers(0, 4), st.integers(1, 3))
def test_proposals_keep_to_the_policy_and_siblings_differ(seq, policy, budget, depth, branch):
    proposal = proposal_of(seq, policy=policy, budget=budget, max_depth=depth, max_branch=branch)
    tree = proposal.tree
    assert tree.token_ids[0] == seq[-1]
    assert tree.num_nodes <= budget
    assert tree.depths.max() <= depth
    assert max(map(len, tree.children)) <= branch
    assert len(set(paths(tree))) == tree.num_nodes + 1
    assert all(row.is_empty for row in proposal.rows)
    assert (proposal.log_probs <= 0).all()


def survival(proposal):
    """Probability of each node's path."""
    tree, log_probs = proposal.tree, proposal.log_probs.astype(float)
    return np.exp([log_probs[tree.path(node)].sum() for node in range(tree.num_nodes + 1)])


@given(tokens, policies, st.integers(0, 12))
def test_a_proposal_is_what_the_policy_selects_of_a_larger_one(seq, policy, budget):
    task = task_of(seq, policy, budget)
    [small], [large] = (
        LookupSource(1, MAX_MATCH).propose([task_of(seq, policy, size)]) for size in (budget, 60)
    )
    nodes = select(task.settings, large.tree.parents, large.log_probs, large.entropies)
    assert small.tree.num_nodes == len(nodes)
    assert survival(small).sum() == pytest.approx(1.0 + survival(large)[nodes].sum())


@given(tokens, st.sets(st.integers(0, 3), max_size=3))
def test_no_node_stands_under_a_stop_token(seq, stops):
    tree = proposal_of(seq, budget=16, stops=tuple(stops)).tree
    inner = {int(tree.token_ids[parent]) for parent in tree.parents[1:] if parent > 0}
    assert not inner & stops


def test_a_stop_token_of_the_prompt_does_not_end_the_answer():
    assert paths(proposal_of([9, 5, 9], policy=PolicyName.CHAIN, stops=(9,)).tree)[1:] == [
        (5,),
        (5, 9),
    ]


def test_a_repeated_span_is_proposed_to_its_end():
    span = [11, 12, 13, 14, 15, 16]
    tree = proposal_of([*span, 7, 8, *span[:2]], policy=PolicyName.CHAIN, budget=4).tree
    assert list(tree.token_ids[1:]) == span[2:]


def test_several_continuations_share_one_tree():
    tree = proposal_of([1, 2, 3, 4, 0, 1, 2, 5, 6, 0, 1, 2], budget=8).tree
    assert {(3,), (3, 4), (5,), (5, 6)} <= set(paths(tree))


def test_a_deep_node_falls_back_to_a_shorter_match():
    # Below the 1, what followed (7, 1) is known, and from another place what followed 1.
    tree = proposal_of([1, 2, 3, 0, 7, 1, 9, 5, 7], budget=16).tree
    assert {(1, 9), (1, 2), (1, 2, 3)} <= set(paths(tree))


def test_recent_and_frequent_continuations_rank_first():
    assert list(proposal_of([1, 2, 1, 3, 1], max_depth=1).tree.token_ids[1:]) == [3, 2]
    frequent = [1, 2, 0, 1, 2, 0, 1, 2, 0, 1, 3, 0, 1]
    assert list(proposal_of(frequent, max_depth=1).tree.token_ids[1:]) == [2, 3]


def test_the_longest_match_outranks_a_shorter_one():
    seq = [5, 1, 2, 0, 4, 1, 3, 0, 4, 1, 3, 0, 5, 1]
    assert list(proposal_of(seq, max_depth=1).tree.token_ids[1:]) == [2, 3]


def test_matches_shorter_than_allowed_are_left_out():
    [proposal] = LookupSource(2, MAX_MATCH).propose([task_of([1, 2, 9, 1])])
    assert proposal.tree.num_nodes == 0


def stored_grams(*texts):
    """What a store would count of whole texts; every follower twice, so that none is left out."""
    return count([answer_of([9, 9, 9, 9], text) for text in texts for _ in range(2)])


def test_the_store_knows_what_the_sequence_does_not():
    store = NgramStore(stored_grams([1, 2, 3, 4]), np.zeros(0))
    task = task_of([7, 1, 2])
    [alone] = LookupSource(1, MAX_MATCH).propose([task])
    [helped] = LookupSource(1, MAX_MATCH, store).propose([task])
    assert alone.tree.num_nodes == 0
    assert {(3,), (3, 4)} <= set(paths(helped.tree))


def test_sequence_and_store_share_one_tree():
    store = NgramStore(stored_grams([1, 2, 3, 4]), np.zeros(0))
    [proposal] = LookupSource(1, MAX_MATCH, store).propose([task_of([1, 2, 5, 6, 1, 2])])
    assert {(5,), (5, 6), (3,), (3, 4)} <= set(paths(proposal.tree))


weight_sets = st.lists(st.floats(-3, 3), min_size=NUM_FEATURES, max_size=NUM_FEATURES)


@given(tokens, tokens, weight_sets, st.integers(1, 8))
def test_children_never_sum_above_one_and_are_a_logistic_choice(seq, answer, weights, depth):
    index, grams = SuffixIndex(MAX_MATCH), stored_grams(answer)
    index.extend(seq)
    drafted = Drafted(np.array([2, 7], np.int32), np.log(np.array([0.6, 0.1], np.float32)))
    parts = index.table, grams, drafted, index.suffix([], MAX_MATCH), depth
    token_ids, features = candidate_features(*parts, 1)
    chosen, log_probs, nats = continuations(*parts, np.array(weights), 1)
    terms = np.exp(features @ np.array(weights))
    expected = terms / (1.0 + terms.sum())
    assert np.exp(log_probs).sum() <= 1.0 + 1e-12
    assert (np.diff(log_probs) <= 0.0).all()
    assert nats == pytest.approx(-(expected * np.log(expected)).sum())
    assert dict(zip(chosen.tolist(), log_probs.tolist(), strict=True)) == pytest.approx(
        dict(zip(token_ids.tolist(), np.log(expected).tolist(), strict=True))
    )


def test_features_say_where_a_candidate_comes_from():
    index, grams = SuffixIndex(MAX_MATCH), stored_grams([1, 2, 3])
    index.extend([1, 2, 5, 0, 2, 4, 1, 2])
    drafted = Drafted(np.array([6, 5, 3], np.int32), np.log(np.array([0.5, 0.2, 0.1], np.float32)))
    token_ids, rows = candidate_features(
        index.table, grams, drafted, index.suffix([], MAX_MATCH), 3, 1
    )
    named = {
        token: {name: x for name, x in zip(FEATURES, row, strict=True) if x}
        for token, row in zip(token_ids.tolist(), rows.tolist(), strict=True)
    }
    for token, odds in ((5, 5.0), (3, 0.2), (4, 0.2), (6, 0.2)):
        assert named[token]["match_odds_2"] == pytest.approx(np.log(odds))
    named = {t: {n: x for n, x in f.items() if "_odds_" not in n} for t, f in named.items()}
    node = {"one", "depth", "node_match_2", "node_gram_2", "estimate", "estimate_odds"}
    assert set(named) == {3, 4, 5, 6}
    offered = {"drafted", "drafted_odds", "drafted_rank"}
    known = {"match_2", "match_share", "match_latest", "seen"}
    assert set(named[5]) == node | known | offered | {"drafted_match", "drafted_match_odds"}
    assert named[5]["drafted_match_odds"] == pytest.approx(np.log(0.25))
    assert set(named[4]) == node | {"match_1", "match_total", "match_latest", "seen"}
    stored = {"gram_2", "gram_share", "gram_total"}
    assert set(named[3]) == node | stored | offered | {"drafted_gram", "drafted_gram_odds"}
    assert set(named[6]) == node | {"drafted"}
    assert named[3]["gram_total"] == pytest.approx(np.log(2 * ANSWER_WEIGHT))
    assert named[5]["depth"] == 2


def test_joint_weights_hold_where_a_model_has_candidates_and_nowhere_else():
    source, sequence = LookupSource(1, MAX_MATCH), task_of([1, 2, 5, 1, 2, 6, 1, 2]).sequence
    alone = source.continuations_of(sequence)([])
    source.join(-1.0 * (np.arange(NUM_FEATURES) == FEATURES.index("one")))
    assert source.continuations_of(sequence)([]) == alone
    drafted = Drafted(np.array([50], np.int32), np.log(np.array([0.9], np.float32)))
    joined = source.continuations_of(sequence, lambda path: drafted)([])
    assert set(joined.token_ids) == {*alone.token_ids, 50}
    assert np.ptp(joined.log_probs) < 1e-9  # which weigh all alike


def test_a_finished_sequence_leaves_nothing_behind():
    source, task = LookupSource(1, MAX_MATCH), task_of([1, 2, 3, 1, 2])
    source.propose([task])
    source.finish(1)
    source.finish(1)
    fresh = task_of([4, 5, 4])
    [proposal] = source.propose([fresh])
    assert paths(proposal.tree)[1] == (5,)


@pytest.mark.parametrize("length", [1, 2])
def test_a_sequence_without_a_past_brings_its_anchor_alone(length):
    assert proposal_of(range(length)).tree.num_nodes == 0
