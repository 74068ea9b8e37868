"""How grouped weights, and the rows that they multiply, lie in memory.

A group is 32 inputs of one output. Its weights are levels of 4 or 8 bits on a grid of its own:

    weight[n, k]   ~ scales[n, g] * levels[n, k] + minima[n, g]     g = k // 32

    record   uint8 [64 + 16 * 32 * bits / 8]   one group of 16 outputs: scales, minima, levels
    blocks   uint8 [N'/16, G, record]          a block of 16 outputs is one stream of records
    rows     uint8 [G, height, 40] in tiles of equal height (the last may be lower): 32 levels int8,
             then the group's scale and its scaled sum of levels, float32

Scales and minima are half floats, 16 of each. Of 4-bit levels a line of 64 bytes holds inputs
8j .. 8j + 3 of all 16 outputs in its lower and 8j + 4 .. 8j + 7 in its upper halves of bytes; of
8-bit levels, inputs 4j .. 4j + 3. Inputs and outputs that are missing to whole groups and blocks
are zero.
"""

import numpy as np
from numba import njit

from canopy_kernels.int8.layout import BLOCK, QUAD, tile_height
from canopy_kernels.int8.rows import largest_magnitude

GROUP = 32  # inputs
GRID_SIZE = 4 * BLOCK  # bytes of a record's scales and minima
ROW_SIZE = GROUP + 8  # bytes of a group of one row
ROW_LEVELS = 127  # largest magnitude of a row's levels
_LOWER_HALF = 15


def num_groups(num_inputs: int) -> int:
    """G of so many inputs."""
    return -(-num_inputs // GROUP)


def record_type(bits: int) -> np.dtype:
    """A record as a structure; its levels are [lines, 16, 4]."""
    lines = GROUP * bits // 8 // QUAD
    grid = ("scales", np.float16, BLOCK), ("minima", np.float16, BLOCK)
    return np.dtype([*grid, ("levels", np.uint8, (lines, BLOCK, QUAD))])


def record_size(bits: int) -> int:
    """Bytes of one group of 16 outputs."""
    return record_type(bits).itemsize


def pack_groups(
    levels: np.ndarray, scales: np.ndarray, minima: np.ndarray, bits: int
) -> np.ndarray:
    """uint8 [N, G * 32], float16 [N, G] twice, to blocks."""
    padding = (0, -len(levels) % BLOCK), (0, 0)
    levels, scales, minima = (np.pad(array, padding) for array in (levels, scales, minima))
    groups = scales.shape[1]
    records = np.empty((len(levels) // BLOCK, groups), record_type(bits))
    for name, grid in (("scales", scales), ("minima", minima)):
        records[name] = grid.reshape(-1, BLOCK, groups).swapaxes(1, 2)
    quads = levels.reshape(-1, BLOCK, groups, GROUP // QUAD, QUAD).transpose(0, 2, 3, 1, 4)
    records["levels"] = quads if bits == 8 else quads[:, :, 0::2] | quads[:, :, 1::2] << 4
    return records.view(np.uint8).reshape(*records.shape, -1)


def unpack_groups(blocks: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The inverse of `pack_groups`, padding kept."""
    records = _records(blocks)
    num_blocks, groups = records.shape
    quads = records["levels"]
    if blocks.shape[2] == record_size(4):
        halves = np.stack((quads & _LOWER_HALF, quads >> 4), axis=3)
        quads = halves.reshape(num_blocks, groups, GROUP // QUAD, BLOCK, QUAD)
    levels = quads.transpose(0, 3, 1, 2, 4).reshape(num_blocks * BLOCK, groups * GROUP)
    scales, minima = (
        records[name].swapaxes(1, 2).reshape(-1, groups) for name in ("scales", "minima")
    )
    return levels, scales, minima


def dequantize_outputs(blocks: np.ndarray, outputs: np.ndarray) -> np.ndarray:
    """Weights of some outputs of 8-bit blocks. outputs: int64 [n]; float32 [n, G * 32]."""
    records = _records(blocks)
    block, lane = outputs // BLOCK, outputs % BLOCK
    levels = records["levels"][block, :, :, lane].reshape(len(outputs), -1, GROUP)
    scales, minima = (
        records[name][block, :, lane].astype(np.float32)[..., None] for name in ("scales", "minima")
    )
    return (levels * scales + minima).reshape(len(outputs), -1)


def _records(blocks: np.ndarray) -> np.ndarray:
    bits = 4 if blocks.shape[2] == record_size(4) else 8
    return blocks.view(record_type(bits))[..., 0]


@njit(cache=True, nogil=True, error_model="numpy")
def put_row_groups(values, packed, row, num_rows, most_rows):
    """Quantize row `row` of num_rows into its tile; tiles have at most `most_rows` rows.

    values: float32 [K]. The levels of a group are values / scale, scale = max |values| / 127.
    """
    groups = -(-len(values) // GROUP)
    highest = tile_height(num_rows, most_rows)
    first = row // highest * highest
    height = min(num_rows - first, highest)
    padded = np.zeros(GROUP, np.float32)
    for group in range(groups):
        start = group * GROUP
        part = values[start : start + GROUP]
        if len(part) < GROUP:
            padded[: len(part)] = part
            part = padded
        at = first * groups * ROW_SIZE + (group * height + row - first) * ROW_SIZE
        _put_group(part, packed[at : at + ROW_SIZE])


@njit(inline="always")
def _put_group(part, room):
    levels, grid = room[:GROUP].view(np.int8), room[GROUP:].view(np.float32)
    scale = largest_magnitude(part.view(np.int32)).view(np.float32) / np.float32(ROW_LEVELS)
    factor = np.float32(1.0) / scale if scale > np.float32(0.0) else np.float32(0.0)
    total = np.int32(0)
    for i in range(GROUP):
        level = np.int32(np.rint(part[i] * factor))
        levels[i] = level
        total += level
    grid[0] = scale
    grid[1] = scale * np.float32(total)
