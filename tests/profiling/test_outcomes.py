"""The fate of drafted nodes, followed down the accepted path."""

import numpy as np
import pytest

from canopy.profiling.outcome_recorder import Outcomes, joined
from canopy.tree import DraftTree

#      0 ── 1 (token 5) ── 3 (token 7)
#        └─ 2 (token 6) └─ 4 (token 8)
TREE = DraftTree(np.array([9, 5, 6, 7, 8], np.int32), np.array([-1, 0, 0, 1, 1], np.int32))
LOGS = np.array([0.0, -0.1, -0.2, -0.3, -0.4])


def outcomes_of(*rounds):
    outcomes = Outcomes()
    for emitted in rounds:
        outcomes.add(TREE, LOGS, emitted)
    return outcomes


def test_only_edges_below_accepted_nodes_are_seen():
    rejected, deep = outcomes_of([3]), outcomes_of([5, 8, 1])
    assert rejected.accepted == [False, False]
    assert rejected.log_probs == [-0.1, -0.2]
    assert deep.accepted == [True, False, False, True]
    assert deep.log_probs == [-0.1, -0.2, -0.3, -0.4]


def test_a_leaf_that_is_accepted_tells_nothing_of_children():
    assert outcomes_of([6, 7]).accepted == [False, True]


def test_sibling_rates_are_shares_of_the_parents_and_fall():
    outcomes = outcomes_of([5, 8], [5, 8], [6], [3])
    assert outcomes.num_parents == 6
    assert outcomes.sibling_rates() == pytest.approx((2 / 6, 2 / 6))  # 3 of 6 fall to no more
    certain = Outcomes(num_parents=3, num_accepted=[3])
    assert sum(certain.sibling_rates()) < 1.0


def test_recordings_are_joined():
    whole, parts = outcomes_of([5, 8], [6], [3]), [outcomes_of([5, 8]), outcomes_of([6], [3])]
    assert joined(parts) == whole


def test_a_place_that_was_never_right_keeps_a_small_rate():
    first, second, third = Outcomes(num_parents=10, num_accepted=[5, 0, 2]).sibling_rates()
    assert first == 0.5
    assert 0.0 < third <= second < 0.01
