"""The walk down the decided tokens is that of canopy.acceptance."""

import numpy as np
import pytest
import torch
from sampling_cases import random_case, to_device

from canopy.acceptance.result import walk
from canopy_kernels.sampling.tree_walk import walk_trees


@pytest.mark.parametrize("vocab_size", [2, 7])
def test_kernel_and_acceptance_walk_alike(vocab_size):
    case = random_case(25, vocab_size, seed=3)
    generator = np.random.default_rng(4)
    decided = []
    for tree in case.trees:
        token_ids = generator.integers(0, vocab_size, tree.num_nodes + 1)
        for node, children in enumerate(tree.children):
            if children and generator.random() < 0.7:
                token_ids[node] = tree.token_ids[generator.choice(children)]
        decided.append(token_ids)
    expected = case.expected(
        walk(tree, lambda node, tokens=tokens: int(tokens[node]))
        for tree, tokens in zip(case.trees, decided, strict=True)
    )
    decided_ids = to_device(np.concatenate(decided).astype(np.int32))
    assert torch.equal(walk_trees(case.device_trees, decided_ids).table.cpu(), expected)
    assert expected[:, 0].max() >= 2
