"""The kernels that multiply tiles of rows with blocks of weights, whatever the pieces."""

import numpy as np
import pytest
from numba import njit

from canopy_kernels.int8 import gemm_dispatch, gemm_simd
from canopy_kernels.int8.layout import BLOCK, QUAD, pack_weight


@njit
def nothing(*_):
    pass


def compiled(tiles):
    """A function that runs one block: packs all rows, then asks for the outputs."""
    begin, end = (getattr(tiles, name, nothing) for name in ("begin", "end"))

    @njit
    def run(q, row_scales, memory, distances, depth, scales, bias, out):
        packed = np.empty(tiles.packed_size(q.shape[0], q.shape[1]), np.uint8)
        for row in range(len(q)):
            tiles.pack_row(q[row], depth, packed, row, len(q))
        begin(len(q), depth)
        b_operand = (
            memory.ctypes.data,
            distances.ctypes.data,
            len(distances),
            depth,
            scales.ctypes.data,
            bias.ctypes.data,
            0,
        )
        a_operand = (packed.ctypes.data, len(q), row_scales.ctypes.data)
        tiles.block_of_outputs(a_operand, b_operand, (out.ctypes.data, out.shape[1]))
        end(len(q))
        return packed.size + distances.size

    return run


@pytest.fixture(
    scope="module",
    params=[gemm_dispatch, gemm_simd],
    ids=lambda module: module.__name__.split(".")[-1],
)
def run(request):
    return compiled(request.param)


@pytest.mark.parametrize("num_rows", [1, 2, 3, 6, 7, 15, 16, 17, 18, 31, 32, 33, 49])
@pytest.mark.parametrize(("depth", "num_pieces"), [(4, 1), (16, 1), (16, 5), (64, 1), (64, 2)])
def test_pieces_anywhere_add_up_exactly(run, num_rows, depth, num_pieces):
    rng = np.random.default_rng(num_rows * depth)
    num_inputs = depth * num_pieces
    q = rng.integers(-32767, 32768, (num_rows, num_inputs)).astype(np.int16)
    q[0], q[-1] = 32767, -32768
    weight = rng.integers(-127, 128, (BLOCK, num_inputs)).astype(np.int8)
    weight[:2] = [[127], [-127]]
    pieces = pack_weight(weight).reshape(num_pieces, depth // QUAD * BLOCK * QUAD)
    memory = np.full(3 * pieces.size, 77, np.int8)
    places = rng.permutation(3 * num_pieces)[:num_pieces]
    memory.reshape(-1, pieces.shape[1])[places] = pieces
    row_scales, scales, bias = (rng.random(n).astype(np.float32) for n in (num_rows, BLOCK, BLOCK))
    out = np.full((num_rows, BLOCK + 3), np.nan, np.float32)
    run(q, row_scales, memory, places * pieces.shape[1], depth, scales, bias, out)
    sums = q.astype(np.int64) @ weight.astype(np.int64).T
    expected = sums.astype(np.float32) * row_scales[:, None] * scales + bias
    assert np.array_equal(out[:, :BLOCK], expected)
    assert np.isnan(out[:, BLOCK:]).all()
