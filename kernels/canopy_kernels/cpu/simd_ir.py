"""Small pieces of LLVM code for the kernels that keep their sums in vector registers.

Vectors have 16 lanes; LLVM cuts them to the registers of the CPU that it compiles for.
"""

from llvmlite import ir
from numba.core import config
from numba.core.codegen import get_host_cpu_features

LANES = 16
PAIR = 2

INT8, INT32, INT64, FLOAT = ir.IntType(8), ir.IntType(32), ir.IntType(64), ir.FloatType()
INT32S = ir.VectorType(INT32, LANES)
FLOATS = ir.VectorType(FLOAT, LANES)
HALF_FLOATS = ir.VectorType(FLOAT, LANES // 2)
INT8_PAIRS = ir.VectorType(INT8, LANES * PAIR)
INT16_PAIRS = ir.VectorType(ir.IntType(16), LANES * PAIR)
INT32_PAIRS = ir.VectorType(INT32, LANES * PAIR)
ZEROS = ir.Constant(INT32S, None)


def has_feature(name: str) -> bool:
    """Whether code is compiled for a CPU with a feature, by LLVM's name of it."""
    chosen = config.CPU_FEATURES  # type: ignore[attr-defined] # "" for a generic CPU
    features = get_host_cpu_features() if chosen is None else chosen
    return f"+{name}" in features.split(",")


def has_wide_registers() -> bool:
    """Whether a vector of 16 numbers is one register of this CPU, of which it then has 32."""
    return has_feature("avx512bw")


def fields(builder, aggregate):
    """The elements of a tuple."""
    return [builder.extract_value(aggregate, i) for i in range(len(aggregate.type.elements))]


def element_address(builder, address, size, index):
    """address + size * index."""
    return builder.add(address, builder.mul(index, ir.Constant(INT64, size)))


def load(builder, address, kind):
    """What lies at an address, aligned or not."""
    return builder.load(builder.inttoptr(address, kind.as_pointer()), align=1)


def store(builder, value, address):
    """Put a vector of numbers of four bytes at an address."""
    builder.store(value, builder.inttoptr(address, value.type.as_pointer()), align=4)


def broadcast(builder, scalar, lanes=LANES):
    """The scalar in every lane."""
    undefined = ir.Constant(ir.VectorType(scalar.type, lanes), ir.Undefined)
    first = builder.insert_element(undefined, scalar, ir.Constant(INT32, 0))
    zeros = ir.Constant(ir.VectorType(INT32, lanes), [0] * lanes)
    return builder.shuffle_vector(first, undefined, zeros)


def halves(builder, vector):
    """The lower and the upper lanes of a vector."""
    undefined, count = ir.Constant(vector.type, ir.Undefined), vector.type.count // 2
    kind = ir.VectorType(INT32, count)
    return [
        builder.shuffle_vector(
            vector, undefined, ir.Constant(kind, list(range(first, first + count)))
        )
        for first in (0, count)
    ]


def add_pairs(builder, pairs):
    """Lane i is pairs[2i] + pairs[2i + 1]; of products of int16 it becomes one instruction."""
    undefined = ir.Constant(pairs.type, ir.Undefined)
    lanes = pairs.type.count
    kind = ir.VectorType(INT32, lanes // PAIR)
    halves = [
        builder.shuffle_vector(pairs, undefined, ir.Constant(kind, list(range(first, lanes, PAIR))))
        for first in range(PAIR)
    ]
    return builder.add(*halves)


def prefetch_line(builder, address):
    """Ask the second-level cache for the line at an address, which need not be readable."""
    byte = ir.IntType(8).as_pointer()
    kind = ir.FunctionType(ir.VoidType(), [byte, INT32, INT32, INT32])
    function = builder.module.declare_intrinsic("llvm.prefetch", [byte], kind)
    read, second_level, data = (ir.Constant(INT32, value) for value in (0, 2, 1))
    builder.call(function, [builder.inttoptr(address, byte), read, second_level, data])
