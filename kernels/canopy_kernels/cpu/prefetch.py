"""Asking for memory before it is needed, where the order of access is no plain stream."""

from numba import njit, types
from numba.extending import intrinsic

from canopy_kernels.cpu.aligned import LINE
from canopy_kernels.cpu.simd_ir import prefetch_line


@njit(inline="always")
def prefetch(array):
    """Ask for all of a contiguous array."""
    for offset in range(0, array.size * array.itemsize, LINE):
        _prefetch_line(array.ctypes.data + offset)


@intrinsic
def _prefetch_line(context, address):
    def codegen(context, builder, signature, arguments):
        prefetch_line(builder, arguments[0])
        return context.get_dummy_value()

    return types.void(types.intp), codegen
