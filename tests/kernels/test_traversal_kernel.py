"""The kernel judges trees as the CPU's rule of traversal does, token for token."""

import math

import numpy as np
import pytest
import torch
from sampling_cases import accepted, arguments, random_case, single

from canopy.sampling import Acceptance
from canopy.tree import ProposalRow
from canopy_kernels.sampling.traversal import traversal

# NumPy, which the interpreter runs on, also computes and warns of what masks leave out.
pytestmark = pytest.mark.filterwarnings("ignore:.*encountered in:RuntimeWarning")


@pytest.mark.parametrize(
    ("vocab_size", "params"),
    [(3, {}), (9, {"temperature": 0.5, "top_k": 4}), (1025, {"top_p": 0.75})],
    ids=str,
)
def test_kernel_and_acceptance_agree(vocab_size, params):
    case = random_case(10, vocab_size, seed=1)
    results = traversal(*arguments(case, **params))
    expected = accepted(case, Acceptance.TRAVERSAL, **params)
    assert torch.equal(results.table.cpu(), expected)


def test_a_drafter_that_is_the_target_is_always_accepted():
    probs = np.array([0.5, 0.3, 0.2])
    row = ProposalRow(np.arange(3, dtype=np.int32), np.log(probs).astype(np.float32))
    logits = np.log(probs)[None].repeat(3, 0)
    case = single([0, 1, 2], [-1, 0, 1], [row, row, ProposalRow.empty()], logits)
    assert traversal(*arguments(case)).table[0, [0, 2, 3]].tolist() == [2, 1, 2]


@pytest.mark.parametrize("fault", ["logits", "child"])
def test_a_faulty_tree_is_refused_as_a_whole(fault):
    row = ProposalRow(np.array([1], np.int32), np.zeros(1, np.float32))
    logits = np.zeros((2, 4))
    token = 1
    if fault == "logits":
        logits[0, 2] = math.nan
    else:
        token = 2
    case = single([0, token], [-1, 0], [row, ProposalRow.empty()], logits)
    assert traversal(*arguments(case)).table.tolist() == [[0, -1, -1]]
