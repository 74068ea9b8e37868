"""The kernel walks as the CPU's rule of rejection does, token for token."""

import math

import numpy as np
import pytest
import torch
from sampling_cases import accepted, arguments, random_case, single

from canopy.sampling import Acceptance
from canopy.tree import ProposalRow
from canopy_kernels.sampling.recursive_rejection import recursive_rejection

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
    results = recursive_rejection(*arguments(case, **params))
    assert torch.equal(results.table.cpu(), accepted(case, Acceptance.REJECTION, **params))


def test_a_child_that_was_not_drawn_from_its_row_is_refused():
    row = ProposalRow(np.array([1], np.int32), np.zeros(1, np.float32))
    case = single([0, 2], [-1, 0], [row, ProposalRow.empty()], np.zeros((2, 4)))
    assert recursive_rejection(*arguments(case)).table.tolist() == [[0, -1, -1]]


def test_a_row_of_logits_that_cannot_be_sampled_is_refused():
    case = single([0], [-1], [ProposalRow.empty()], [[math.nan, 0.0]])
    case.rows[0][0] = ProposalRow(np.array([0], np.int32), np.zeros(1, np.float32))
    assert recursive_rejection(*arguments(case)).table.tolist() == [[0, -1]]


def test_a_drafter_that_is_the_target_is_always_accepted():
    probs = np.array([0.5, 0.3, 0.2])
    row = ProposalRow(np.arange(3, dtype=np.int32), np.log(probs).astype(np.float32))
    logits = np.log(probs)[None].repeat(3, 0)
    case = single([0, 1, 2], [-1, 0, 1], [row, row, ProposalRow.empty()], logits)
    table = recursive_rejection(*arguments(case)).table
    assert table[0, 0] == 2
    assert table[0, 2:].tolist() == [1, 2]
