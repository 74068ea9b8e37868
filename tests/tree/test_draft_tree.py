"""The tree type: its derived views agree with each other, and malformed trees are refused."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from canopy.tree import DraftTree, Forest
from canopy.tree.forest import split_ragged


@st.composite
def trees(draw, max_nodes=16):
    num_nodes = draw(st.integers(0, max_nodes))
    parents = [-1] + [draw(st.integers(0, node)) for node in range(num_nodes)]
    tokens = [draw(st.integers(0, 9)) for _ in parents]
    return DraftTree(np.array(tokens, np.int32), np.array(parents, np.int32))


@given(trees())
def test_paths_depths_and_mask_tell_the_same_story(tree):
    for node in range(tree.num_nodes + 1):
        path = tree.path(node)
        assert len(path) == tree.depths[node]
        assert set(np.flatnonzero(tree.mask[node])) == {0, *path}


@given(trees())
def test_children_are_the_inverse_of_parents(tree):
    pairs = [(child, node) for node, kids in enumerate(tree.children) for child in kids]
    assert sorted(pairs) == [(n, tree.parents[n]) for n in range(1, tree.num_nodes + 1)]


@given(trees(), st.data())
def test_a_subtree_keeps_the_tokens_of_every_path(tree, data):
    seeds = data.draw(st.sets(st.integers(0, tree.num_nodes)))
    nodes = sorted({ancestor for node in seeds for ancestor in tree.path(node)})
    part = tree.subtree(np.array(nodes, np.int32))
    assert part.num_nodes == len(nodes)
    for index, node in enumerate([0, *nodes]):
        assert list(part.token_ids[part.path(index)]) == list(tree.token_ids[tree.path(node)])


@given(st.lists(trees(max_nodes=6), max_size=5))
def test_a_forest_gives_its_trees_back(forest):
    back = Forest.pack(forest).unpack()
    assert [t.token_ids.tolist() for t in back] == [t.token_ids.tolist() for t in forest]
    assert [t.parents.tolist() for t in back] == [t.parents.tolist() for t in forest]


def test_a_subtree_without_a_parent_is_refused():
    chain = DraftTree(np.arange(3, dtype=np.int32), np.array([-1, 0, 1], np.int32))
    with pytest.raises(ValueError, match="parent"):
        chain.subtree(np.array([2]))


@pytest.mark.parametrize("parents", [[], [0], [-1, -1], [-1, 1], [-1, 2, 0], [-1, 0, 3, 1]])
def test_what_is_no_tree_is_refused(parents):
    with pytest.raises(ValueError, match=r"anchor|parent"):
        DraftTree(np.zeros(len(parents), np.int32), np.array(parents, np.int32))


def test_ragged_lengths_must_add_up():
    with pytest.raises(ValueError, match="add up"):
        split_ragged(np.zeros(3), np.array([1, 1]))


@given(trees(), st.data())
def test_sibling_ranks_follow_a_spelled_path(tree, data):
    spelled = DraftTree(np.arange(100, 101 + tree.num_nodes, dtype=np.int32), tree.parents)
    path = spelled.path(data.draw(st.integers(0, tree.num_nodes)))
    ranks = [spelled.children[spelled.parents[node]].index(node) for node in path]
    token_ids = spelled.token_ids[path].tolist()
    assert spelled.sibling_ranks(spelled.follow(token_ids)) == ranks
    assert spelled.sibling_ranks(spelled.follow([*token_ids, 7])) == ranks
    assert spelled.follow([7, *token_ids]) == []
