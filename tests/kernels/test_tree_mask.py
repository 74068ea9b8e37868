"""A row sees its ancestors in the chain, its ancestors in the tree behind it, and itself."""

import numpy as np
import pytest
import torch
from kernel_interpreter import DEVICE

from canopy_kernels.attention.ancestor_bits import ancestor_bits
from canopy_kernels.attention.tree_mask import TreeMask

CHAIN = list(range(-1, 9))
FORESTS = {
    "an anchor": [-1],
    "a chain": CHAIN,
    "a tree": [-1, 0, 0, 1, 1, 2, 3, 3, 4, 6],
    "roots": [-1, -1, 0, 1, -1, 4],
    "a tree behind a chain": [*CHAIN, 9, 9, 10, 11, 12],
    "branches from within a chain": [*CHAIN, 4, 10, 9, 0],
    "a long tree": [-1, -1, *range(1, 200)],
    "a chain over many blocks": list(range(-1, 300)),
}


def visible(parents: list[int]) -> tuple[np.ndarray, np.ndarray]:
    """bool [n, n] of what each row sees, and its depth."""
    sees, depths = np.eye(len(parents), dtype=bool), np.zeros(len(parents), int)
    for row, parent in enumerate(parents):
        if parent >= 0:
            sees[row] |= sees[parent]
            depths[row] = depths[parent] + 1
    return sees, depths


def of_forests(build, forests: list[list[int]]):
    """A mask of sequences that stand one after the other, and where each begins."""
    starts = np.cumsum([0, *map(len, forests)])
    rows = [p + s if p >= 0 else -1 for s, f in zip(starts, forests, strict=False) for p in f]
    row_starts = torch.tensor(starts, dtype=torch.int32, device=DEVICE)
    return build(torch.tensor(rows, dtype=torch.int32, device=DEVICE), row_starts), starts


def test_the_mask_is_that_of_the_paths():
    forests = list(FORESTS.values())
    mask, starts = of_forests(TreeMask.of, forests)
    mask = TreeMask(*(tensor.cpu().numpy() for tensor in mask))
    for sequence, parents in enumerate(forests):
        own = slice(starts[sequence], starts[sequence + 1])
        sees, depths = visible(parents)
        np.testing.assert_array_equal(mask.depths[own], depths)
        bits = np.unpackbits(mask.bits[own].view(np.uint8), axis=1, bitorder="little")
        given = np.arange(len(parents))[None, :] <= mask.entries[own][:, None]
        chain = mask.chains[sequence]
        given[:, chain:] |= bits[:, : len(parents) - chain].astype(bool)
        np.testing.assert_array_equal(given, sees)


@pytest.mark.parametrize("parents", FORESTS.values(), ids=FORESTS)
def test_ancestor_bits_are_the_same_mask_without_a_chain(parents):
    bits, _ = of_forests(ancestor_bits, [[-1], parents])
    given = np.unpackbits(bits.cpu().numpy().view(np.uint8), axis=1, bitorder="little")
    np.testing.assert_array_equal(given[1:, : len(parents)].astype(bool), visible(parents)[0])
