"""The kernel walks as the CPU's rule of rejection does, token for token."""

import math

import numpy as np
import pytest
import torch
from sampling_cases import Case, accepted, arguments, cpu, random_case, single

from canopy.acceptance import draft_noise, draw_children
from canopy.sampling import Acceptance
from canopy.tree import DraftTree, ProposalRow
from canopy_kernels.sampling.recursive_rejection import recursive_rejection_reference
from canopy_kernels.sampling.recursive_rejection_triton import launch_recursive_rejection

# NumPy, which the interpreter runs on, also computes and warns of what masks leave out.
pytestmark = pytest.mark.filterwarnings("ignore:.*encountered in:RuntimeWarning")


@pytest.mark.parametrize(
    ("vocab_size", "params"),
    [
        (3, {}),
        (9, {"temperature": 0.5, "top_k": 4}),
        (1025, {"top_p": 0.75}),
        (3000, {"temperature": 1.5}),
    ],
    ids=str,
)
def test_kernel_and_acceptance_agree(vocab_size, params):
    case = random_case(10, vocab_size, seed=1)
    results = launch_recursive_rejection(*arguments(case, **params))
    assert torch.equal(results.table.cpu(), accepted(case, Acceptance.REJECTION, **params))


@pytest.mark.parametrize("vocab_size", [3, 40])
def test_reference_and_acceptance_agree(vocab_size):
    case = random_case(200, vocab_size, seed=2)
    results = recursive_rejection_reference(*(cpu(a) for a in arguments(case)))
    assert torch.equal(results.table, accepted(case, Acceptance.REJECTION))
    assert results.num_accepted.sum() > 50


def test_the_emitted_token_follows_the_target_whatever_the_row():
    target = np.array([0.4, 0.3, 0.2, 0.1])
    row = ProposalRow(
        np.array([3, 0, 1], np.int32), np.log(np.array([0.6, 0.3, 0.1])).astype(np.float32)
    )
    num_draws = 4000
    case = Case([], [], [], list(range(num_draws)), [11] * num_draws)
    logits = np.log(target).astype(np.float32)[None].repeat(3, 0)
    for seed in case.seeds:
        children = draw_children(row, 2, draft_noise(seed, 11, 0))
        case.trees.append(DraftTree(np.array([0, *children], np.int32), np.array([-1, 0, 0])))
        case.rows.append([row, ProposalRow.empty(), ProposalRow.empty()])
        case.logits.append(logits)
    results = recursive_rejection_reference(*(cpu(a) for a in arguments(case)))
    paths, trees = results.paths[:, 0].tolist(), case.trees
    first = [
        int(tree.token_ids[path]) if path >= 0 else bonus
        for path, tree, bonus in zip(paths, trees, results.bonus_ids.tolist(), strict=True)
    ]
    counts = np.bincount(first, minlength=4)
    distance = (counts - target * num_draws) ** 2 / (target * num_draws)
    assert distance.sum() < 16.3  # chi-square, 3 degrees of freedom, 0.1 %


def test_a_child_that_was_not_drawn_from_its_row_is_refused():
    row = ProposalRow(np.array([1], np.int32), np.zeros(1, np.float32))
    case = single([0, 2], [-1, 0], [row, ProposalRow.empty()], np.zeros((2, 4)))
    assert launch_recursive_rejection(*arguments(case)).table.tolist() == [[0, -1, -1]]


def test_a_row_of_logits_that_cannot_be_sampled_is_refused():
    case = single([0], [-1], [ProposalRow.empty()], [[math.nan, 0.0]])
    case.rows[0][0] = ProposalRow(np.array([0], np.int32), np.zeros(1, np.float32))
    assert launch_recursive_rejection(*arguments(case)).table.tolist() == [[0, -1]]


def test_a_drafter_that_is_the_target_is_always_accepted():
    probs = np.array([0.5, 0.3, 0.2])
    row = ProposalRow(np.arange(3, dtype=np.int32), np.log(probs).astype(np.float32))
    logits = np.log(probs)[None].repeat(3, 0)
    case = single([0, 1, 2], [-1, 0, 1], [row, row, ProposalRow.empty()], logits)
    table = launch_recursive_rejection(*arguments(case)).table
    assert table[0, 0] == 2
    assert table[0, 2:].tolist() == [1, 2]
