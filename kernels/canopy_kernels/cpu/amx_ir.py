"""Small pieces of LLVM code for the matrix tiles of AMX, and whether this CPU has them.

A tile register holds up to 16 rows of 64 bytes. Before use a thread says how many of them each
register has; what the threads of one process may use, the operating system must be asked once.
"""

import ctypes
import functools
import platform

from llvmlite import ir
from numba.core import cgutils

from canopy_kernels.cpu.simd_ir import INT64, has_feature

_BYTE = ir.IntType(8)
_ADDRESS = _BYTE.as_pointer()
_ARCH_PRCTL, _REQUEST_PERMISSION, _TILE_DATA = 158, 0x1023, 18  # Linux on x86-64
_CONFIGURATION_SIZE, _FIRST_WIDTH, _FIRST_HEIGHT = 64, 16, 48  # bytes, as LDTILECFG reads them


def has_matrix_tiles() -> bool:
    """Whether code is compiled for a CPU with int8 tiles, and this process may use them."""
    return has_feature("amx-int8") and are_tiles_permitted()


@functools.cache
def are_tiles_permitted() -> bool:
    """Whether the operating system lets this process use them, which it is asked for here."""
    if platform.system() != "Linux":
        return False
    return bool(ctypes.CDLL(None).syscall(_ARCH_PRCTL, _REQUEST_PERMISSION, _TILE_DATA) == 0)


def configure_tiles(builder, shapes):
    """Give tile registers 0, 1, ... heights and widths in bytes, and zero them."""
    configuration = cgutils.alloca_once(builder, ir.ArrayType(_BYTE, _CONFIGURATION_SIZE))
    cgutils.memset(builder, configuration, INT64(_CONFIGURATION_SIZE), 0)
    first = builder.ptrtoint(configuration, INT64)

    def put(offset, value):
        element_address = builder.inttoptr(builder.add(first, INT64(offset)), _ADDRESS)
        builder.store(builder.trunc(value, _BYTE), element_address)

    put(0, INT64(1))  # the only palette there is
    for tile, (height, width) in enumerate(shapes):
        put(_FIRST_HEIGHT + tile, height)
        put(_FIRST_WIDTH + 2 * tile, width)
    _call(builder, "ldtilecfg", builder.bitcast(configuration, _ADDRESS))


def release_tiles(builder):
    """Say that the registers hold nothing, so that nobody saves them."""
    _call(builder, "tilerelease")


def load_tile(builder, tile, address, stride):
    """Rows that lie `stride` bytes apart."""
    _call(builder, "tileloadd64", _BYTE(tile), builder.inttoptr(address, _ADDRESS), stride)


def store_tile(builder, tile, address, stride):
    """The inverse of `load_tile`."""
    _call(builder, "tilestored64", _BYTE(tile), builder.inttoptr(address, _ADDRESS), stride)


def zero_tile(builder, tile):
    _call(builder, "tilezero", _BYTE(tile))


def add_products(builder, sums, rows, columns, rows_are_signed):
    """sums[m, n] += products of 4 bytes of rows[m] and of columns[., n], int32; columns int8."""
    name = "tdpbssd" if rows_are_signed else "tdpbusd"
    _call(builder, name, _BYTE(sums), _BYTE(rows), _BYTE(columns))


def _call(builder, name, *arguments):
    kind = ir.FunctionType(ir.VoidType(), [argument.type for argument in arguments])
    function = cgutils.get_or_insert_function(builder.module, kind, f"llvm.x86.{name}")
    builder.call(function, arguments)
