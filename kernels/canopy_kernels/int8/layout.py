"""How int8 blocks of outputs and the int16 rows that they multiply lie in memory.

    block    int8 [K/4, 16, 4]     weights of 16 outputs side by side, four inputs together
    piece    int8 [depth/4, 16, 4] a run of a block; the pieces of one sum may lie anywhere
    rows     packed for the kernel in tiles of equal height (the last may be lower), see there

K is a multiple of 4; inputs and outputs that are missing to whole blocks are zero.
"""

import numpy as np
from numba import njit

from canopy_kernels.cpu.simd_ir import LANES

BLOCK = LANES  # outputs of a block
QUAD = 4  # inputs that lie together


def pack_weight(levels: np.ndarray) -> np.ndarray:
    """int8 [N, K] to [N'/16, K'/4, 16, 4], padded with zeros."""
    num_outputs, num_inputs = levels.shape
    padded = np.pad(levels, ((0, -num_outputs % BLOCK), (0, -num_inputs % QUAD)))
    blocks = padded.reshape(-1, BLOCK, padded.shape[1] // QUAD, QUAD)
    return np.ascontiguousarray(blocks.transpose(0, 2, 1, 3))


def unpack_weight(blocks: np.ndarray) -> np.ndarray:
    """int8 [N', K']: the inverse of `pack_weight`, padding kept."""
    num_blocks, num_quads = blocks.shape[:2]
    return blocks.transpose(0, 2, 1, 3).reshape(num_blocks * BLOCK, num_quads * QUAD)


def pad_outputs(vector: np.ndarray) -> np.ndarray:
    """[N] to [N'], padded with zeros."""
    return np.pad(vector, (0, -len(vector) % BLOCK))


def padded_inputs(num_inputs: int) -> int:
    """K of a block with so many inputs."""
    return num_inputs + -num_inputs % QUAD


def padded_outputs(num_outputs: int) -> int:
    """N' of blocks for so many outputs."""
    return num_outputs + -num_outputs % BLOCK


@njit(inline="always")
def tile_height(num_rows, most):
    """Rows of a tile: no more than `most`, in as few tiles as can be. num_rows >= 1."""
    return -(-num_rows // -(-num_rows // most))
