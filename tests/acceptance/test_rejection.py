"""The rejection rule at one node yields the target's distribution, exact and noisy."""

from functools import cache

import numpy as np
import pytest
from enumeration import enumerate_outcomes
from hypothesis import given, settings
from hypothesis import strategies as st

from canopy.acceptance import accept, draft_noise, draw_children, slot_log_probs
from canopy.acceptance.random_source import accept_noise
from canopy.acceptance.rejection import decide_token, row_probs
from canopy.sampling import Acceptance, SamplingParams
from canopy.tree import DraftTree, ProposalRow

VOCAB_SIZE = 6
EXACT = 1e-12
CHI_SQUARE_LIMIT = {5: 25.7, 8: 31.8}  # quantile at 1e-4 by degrees of freedom


def row_of(token_ids, weights):
    weights = np.asarray(weights, np.float64)
    log_probs = np.log(weights / weights.sum()).astype(np.float32)
    return ProposalRow(np.asarray(token_ids, np.int32), log_probs)


@st.composite
def nodes(draw):
    """A target, some of whose tokens are impossible, and a row over some of the tokens."""
    weight = st.sampled_from([0.0, 1e-6, 0.1, 0.3, 1.0])
    target = np.array(draw(st.lists(weight, min_size=4, max_size=4)))
    target[draw(st.integers(0, 3))] += 0.5
    token_ids = draw(st.lists(st.integers(0, 3), min_size=1, max_size=4, unique=True))
    weights = [draw(st.sampled_from([1e-6, 0.1, 0.4, 1.0])) for _ in token_ids]
    return target / target.sum(), row_of(token_ids, weights)


@settings(max_examples=60, deadline=None)
@given(node=nodes(), num_children=st.integers(0, 4), scale=st.sampled_from([1.0, 7.5]))
def test_the_token_follows_the_target_whatever_the_row(node, num_children, scale):
    target, row = node
    distribution = np.zeros(len(target))

    def decide(random_source):
        children = draw_children(row, num_children, random_source)
        return decide_token(scale * target, children, row, random_source)

    for token, probability in enumerate_outcomes(decide):
        distribution[token] += probability
    np.testing.assert_allclose(distribution, target, atol=EXACT, rtol=0)


@settings(max_examples=60, deadline=None)
@given(node=nodes(), children=st.lists(st.integers(0, 3), max_size=5))
def test_deterministic_children_may_be_any_tokens_even_repeated(node, children):
    target, _ = node
    distribution = np.zeros(len(target))
    for token, probability in enumerate_outcomes(
        lambda random_source: decide_token(target, children, ProposalRow.empty(), random_source)
    ):
        distribution[token] += probability
    np.testing.assert_allclose(distribution, target, atol=EXACT, rtol=0)


def test_a_row_equal_to_the_target_is_always_accepted():
    weights = np.array([0.1, 0.2, 0.3, 0.4])
    row = row_of(range(4), weights)
    target = row_probs(row)
    for token in range(4):
        distribution = dict(
            enumerate_outcomes(lambda c, token=token: decide_token(target, [token], row, c))
        )
        assert distribution.get(token, 0.0) > 1 - EXACT


def test_a_child_that_cannot_have_been_drawn_is_an_error():
    row = row_of([0, 1], [0.5, 0.5])
    for children in ([2], [0, 0], [0, 1, 3]):
        with pytest.raises(ValueError, match="not drawn"):
            list(
                enumerate_outcomes(
                    lambda c, children=children: decide_token(np.eye(4)[3], children, row, c)
                )
            )


@given(seed=st.integers(0, 2**64 - 1), node=st.integers(0, 300), num=st.integers(0, 7))
@settings(deadline=None)
def test_draws_are_distinct_nested_and_limited_by_the_row(seed, node, num):
    row = row_of([5, 2, 4, 0], [0.5, 1e-3, 0.3, 0.2])
    noise = draft_noise(seed, 8, node)
    drawn = draw_children(row, num, noise).tolist()
    assert len(drawn) == len(set(drawn)) == min(num, 4)
    assert set(drawn) <= set(row.token_ids.tolist())
    assert draw_children(row, 4, noise).tolist()[:num] == drawn


def test_slots_are_valued_by_the_row_alone_and_never_above_one_in_sum():
    row = row_of([5, 2, 4], [0.2, 0.5, 0.3])
    np.testing.assert_allclose(np.exp(slot_log_probs(row, 2)), [0.5, 0.3], rtol=1e-6)
    assert len(slot_log_probs(row, 9)) == 3


def chi_square(counts, probs):
    expected = probs * sum(counts)
    return float(np.sum((counts - expected) ** 2 / expected))


def test_first_draws_follow_the_row_and_nodes_draw_independently():
    row = row_of(range(3), [0.2, 0.3, 0.5])
    pairs = np.zeros((3, 3))
    for seed in range(6000):
        first, second = (draw_children(row, 1, draft_noise(seed, 3, node))[0] for node in (0, 1))
        pairs[first, second] += 1
    probs = row_probs(row)
    statistic = chi_square(pairs.ravel(), np.outer(probs, probs).ravel())
    assert statistic < CHI_SQUARE_LIMIT[8]


@cache
def toy_logits(prefix):
    return np.random.default_rng([5, *prefix]).normal(0, 1.2, VOCAB_SIZE).astype(np.float32)


@cache
def toy_row(prefix):
    weights = np.exp(np.random.default_rng([6, *prefix]).normal(0, 1.2, VOCAB_SIZE))
    kept = np.sort(np.argsort(-weights)[:5])
    return row_of(kept, weights[kept])


def drafted_tree(seed, num_tokens, acceptance):
    """Two children and one grandchild below each, made as the mode asks."""
    tokens, parents, rows, prefixes = [0], [-1], [toy_row(())], [()]
    for node, width in ((0, 2), (1, 1), (2, 1)):
        row, prefix = rows[node], prefixes[node]
        if acceptance.draws_children:
            position = num_tokens + len(prefix)
            children = draw_children(row, width, draft_noise(seed, position, node))
        else:
            children = row.token_ids[np.argsort(-row.log_probs)][:width]
        for token in children.tolist():
            tokens.append(token)
            parents.append(node)
            prefixes.append((*prefix, token))
            rows.append(toy_row(prefixes[-1]))
    return DraftTree(np.array(tokens, np.int32), np.array(parents, np.int32)), rows, prefixes


@pytest.mark.parametrize(
    "acceptance", [mode for mode in Acceptance if mode is not Acceptance.GREEDY]
)
def test_sampled_rounds_follow_the_target(acceptance):
    """First and second token through `accept`, drafter noise and accept noise of one seed."""
    num_tokens, first = 11, np.zeros(VOCAB_SIZE)
    second = np.zeros((VOCAB_SIZE, VOCAB_SIZE))
    for seed in range(4000):
        tree, rows, prefixes = drafted_tree(seed, num_tokens, acceptance)
        logits = np.stack([toy_logits(prefix) for prefix in prefixes])
        params = SamplingParams(temperature=1.0, seed=seed, acceptance=acceptance)
        emitted = accept(tree, rows, logits, params, num_tokens).token_ids(tree)
        first[emitted[0]] += 1
        if len(emitted) > 1:
            second[emitted[0], emitted[1]] += 1

    def distribution(prefix):
        weights = np.exp(toy_logits(prefix).astype(np.float64))
        return weights / weights.sum()

    assert chi_square(first, distribution(())) < CHI_SQUARE_LIMIT[5]
    followed = [token for token in range(VOCAB_SIZE) if second[token].sum() > 200]
    assert followed
    for token in followed:
        assert chi_square(second[token], distribution((token,))) < CHI_SQUARE_LIMIT[5]


@pytest.mark.parametrize("acceptance", [Acceptance.REJECTION, Acceptance.COUPLED])
def test_a_token_without_a_tree_follows_the_same_law(acceptance):
    """The first token after the prompt, and every token of plain decoding."""
    anchor, counts = DraftTree.of_anchor(0), np.zeros(VOCAB_SIZE)
    for seed in range(3000):
        params = SamplingParams(temperature=1.0, seed=seed, acceptance=acceptance)
        result = accept(anchor, [ProposalRow.empty()], toy_logits(())[None], params, 11)
        assert result.path == []
        counts[result.bonus] += 1
    weights = np.exp(toy_logits(()).astype(np.float64))
    assert chi_square(counts, weights / weights.sum()) < CHI_SQUARE_LIMIT[5]


def test_draft_noise_must_not_be_accept_noise():
    """The same draws and tests from one stream are biased, from disjoint streams they are not."""
    weights = np.exp(toy_logits(()).astype(np.float64))
    target, row = weights / weights.sum(), toy_row(())

    def statistic(noise_of_draft):
        counts = np.zeros(VOCAB_SIZE)
        for seed in range(3000):
            children = draw_children(row, 1, noise_of_draft(seed)).tolist()
            counts[decide_token(target, children, row, accept_noise(seed, 4))] += 1
        return chi_square(counts, target)

    assert statistic(lambda seed: accept_noise(seed, 4)) > 10 * CHI_SQUARE_LIMIT[5]
    assert statistic(lambda seed: draft_noise(seed, 4, 0)) < CHI_SQUARE_LIMIT[5]
