"""Products of packed rows and blocks of weights, by the kernel that suits this CPU and the rows.

Few rows leave matrix tiles mostly empty: what they read of the weights then comes sooner through
vector registers. The interface is that of canopy_kernels.int8.gemm_simd and
canopy_kernels.int8.gemm_amx; `piece_depth` here depends on the number of rows too.
"""

from numba import njit

from canopy_kernels.cpu.amx_ir import has_matrix_tiles
from canopy_kernels.int8 import gemm_simd as vectors

_FEW = 4  # rows

if has_matrix_tiles():
    from canopy_kernels.int8 import gemm_amx as matrices

    @njit(inline="always")
    def piece_depth(num_inputs, num_rows):
        if num_rows <= _FEW:
            return vectors.piece_depth(num_inputs)
        return matrices.piece_depth(num_inputs)

    @njit(inline="always")
    def packed_size(num_rows, num_inputs):
        return matrices.packed_size(num_rows, num_inputs)

    @njit(cache=True, nogil=True, error_model="numpy")
    def pack_row(levels, depth, packed, row, num_rows):
        if num_rows <= _FEW:
            vectors.pack_row(levels, depth, packed, row, num_rows)
        else:
            matrices.pack_row(levels, depth, packed, row, num_rows)

    @njit(inline="always")
    def begin(num_rows, depth):
        if num_rows > _FEW:
            matrices.begin(num_rows, depth)

    @njit(inline="always")
    def end(num_rows):
        if num_rows > _FEW:
            matrices.end()

    @njit(cache=True, nogil=True, error_model="numpy")
    def block_of_outputs(a_operand, b_operand, out):
        if a_operand[1] <= _FEW:
            vectors.block_of_outputs(a_operand, b_operand, out)
        else:
            matrices.block_of_outputs(a_operand, b_operand, out)

else:
    from canopy_kernels.int8.gemm_simd import block_of_outputs, pack_row, packed_size

    @njit(inline="always")
    def piece_depth(num_inputs, num_rows):
        return vectors.piece_depth(num_inputs)

    @njit(inline="always")
    def begin(num_rows, depth):
        """Vector registers need no preparation."""

    @njit(inline="always")
    def end(num_rows):
        pass


__all__ = ["begin", "block_of_outputs", "end", "pack_row", "packed_size", "piece_depth"]
