"""A block drafter's distributions below an anchor, and their blending with lookup's."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from canopy.drafter.block.distributions import BlockDistributions, Copied, MarkovHead
from canopy.drafter.block.source import blended
from canopy.drafter.growth.best_first import Continuations
from canopy.models.block_drafter.runner import BlockRows

ANCHOR = 3


def random_distributions(seed, num_candidates, temperature=1.0, is_on=True):
    generator = np.random.default_rng(seed)
    head = MarkovHead(
        generator.normal(size=(50, 8)).astype(np.float32),
        generator.normal(size=(8, 8)).astype(np.float32),
        generator.normal(size=(40, 8)).astype(np.float32),
        np.sort(generator.permutation(50)[:40]).astype(np.int32),
        is_on,
    )
    logits = 3 * generator.normal(size=(4, 40)).astype(np.float32)
    rows = BlockRows(logits, generator.normal(size=(4, 8)).astype(np.float32))
    return BlockDistributions(rows, head, ANCHOR, num_candidates, temperature), rows, head


def transition(head, rows, path):
    """W2 of the path's state, by the formula."""
    state = np.zeros(8)
    for depth, token in enumerate([ANCHOR, *path]):
        state = np.tanh(head.codes[token] + rows.codes[depth] + head.step @ state)
    return head.out @ state


@pytest.mark.parametrize("temperature", [1.0, 0.7])
@pytest.mark.parametrize("is_on", [True, False])
def test_all_candidates_have_the_softmax_of_row_and_transition(is_on, temperature):
    distributions, rows, head = random_distributions(0, 40, temperature, is_on)
    for path in ([], [7, 49], [7, 5], [7, 49, 0]):
        scores = rows.logits[len(path)] + (transition(head, rows, path) if is_on else 0.0)
        expected = np.exp(scores / temperature - np.logaddexp.reduce(scores / temperature))
        token_ids, log_probs, entropy = distributions.after(path, 40)
        assert np.all(np.diff(log_probs) <= 0)
        found = dict(zip(token_ids.tolist(), np.exp(log_probs).tolist(), strict=True))
        for token, prob in zip(head.draft_ids.tolist(), expected, strict=True):
            assert found[token] == pytest.approx(prob, rel=1e-4, abs=1e-7)
        assert entropy == pytest.approx(-(expected * np.log2(expected)).sum(), abs=1e-3)


@given(st.integers(0, 200), st.integers(1, 40), st.integers(1, 8), st.booleans())
def test_a_copied_token_has_its_bonus_while_the_parent_is_copied_too(seed, num, length, is_after):
    _, rows, head = random_distributions(seed, num)
    generator = np.random.default_rng(seed)
    copying = replace(head, copy_bonus=generator.normal(size=(4, 9)).astype(np.float32))
    following = generator.choice(head.draft_ids, 4, replace=False)
    path = [int(following[0]), int(following[1] if is_after else following[3])]
    distributions = BlockDistributions(rows, copying, ANCHOR, num, copied=Copied(length, following))
    found = dict(zip(*(part.tolist() for part in distributions.after(path, num)[:2]), strict=True))
    assert len(found) == num
    place = int(np.searchsorted(head.draft_ids, following[2]))
    scores = rows.logits[2] + transition(head, rows, path)
    rest = np.delete(np.arange(40), [list(head.draft_ids).index(token) for token in found])
    scores[place] += copying.copy_bonus[2, length] if is_after else 0.0
    scores[rest] = rows.logits[2][rest]  # the tail keeps its share of U
    expected = scores[place] - np.logaddexp.reduce(scores.astype(float))
    assert found[int(following[2])] == pytest.approx(min(expected, 0.0), abs=1e-4)


def test_without_a_match_or_out_of_the_draft_vocabulary_nothing_is_copied():
    distributions, rows, head = random_distributions(0, 20)
    copying = replace(head, copy_bonus=np.full((4, 9), 5.0, np.float32))
    unknown = next(token for token in range(50) if token not in head.draft_ids)
    for copied in (Copied(0, head.draft_ids[:4]), Copied(3, np.full(4, unknown))):
        others = BlockDistributions(rows, copying, ANCHOR, 20, copied=copied)
        for mine, its in zip(
            others.after([unknown], 20), distributions.after([unknown], 20), strict=True
        ):
            np.testing.assert_array_equal(mine, its)


@given(st.integers(0, 200), st.integers(1, 40), st.integers(0, 49))
def test_fewer_candidates_never_have_more_mass_and_never_sum_above_one(seed, num, parent):
    distributions, _, _ = random_distributions(seed, num)
    token_ids, log_probs, entropy = distributions.after([parent], num)
    assert len(set(token_ids.tolist())) == num
    total = float(np.exp(log_probs.astype(float)).sum())
    assert total <= 1.0 + 1e-5
    all_log_probs = random_distributions(seed, 50)[0].after([parent], 50)[1]
    assert total <= float(np.exp(all_log_probs.astype(float)).sum()) + 1e-5
    assert 0.0 <= entropy < 10.0


@given(st.lists(st.floats(0.01, 1.0), max_size=5), st.integers(0, 50))
def test_blending_keeps_the_children_of_a_node_below_one(weights, seed):
    total = sum(weights) * 1.01 + 0.01
    logs = np.log(np.sort(weights)[::-1] / total).tolist()
    known = Continuations(list(range(len(weights))), logs, 0.5)
    found = blended(known, random_distributions(seed, 40)[0].after([], 16))
    assert len(set(found.token_ids)) == len(found.token_ids)
    assert np.exp(found.log_probs).sum() <= 1.0 + 1e-5
    assert list(found.log_probs) == sorted(found.log_probs, reverse=True)
    assert set(known.token_ids) <= set(found.token_ids)
