"""Asking for memory before it is needed, where the order of access is no plain stream."""

from llvmlite import ir
from numba import njit, types
from numba.extending import intrinsic

_LINE = 64  # bytes


@njit(inline="always")
def prefetch(array):  # type: ignore[no-untyped-def]
    """Ask for all of a contiguous array."""
    for offset in range(0, array.size * array.itemsize, _LINE):
        _prefetch_line(array.ctypes.data + offset)


@intrinsic
def _prefetch_line(context, address):  # type: ignore[no-untyped-def]
    def codegen(context, builder, signature, arguments):  # type: ignore[no-untyped-def]
        pointer, flag = ir.IntType(8).as_pointer(), ir.IntType(32)
        kind = ir.FunctionType(ir.VoidType(), [pointer, flag, flag, flag])
        function = builder.module.declare_intrinsic("llvm.prefetch.p0", fnty=kind)
        read, keep, data = flag(0), flag(3), flag(1)
        builder.call(function, [builder.inttoptr(arguments[0], pointer), read, keep, data])
        return context.get_dummy_value()

    return types.void(types.intp), codegen
