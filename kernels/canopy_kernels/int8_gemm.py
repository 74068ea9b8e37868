"""Linear layers on exact integers: int8 weights, int16 activations, int32 sums.

    rows[t, k]    ~ q[t, k] * row_scales[t]          |q| <= activation_levels(K)
    weight[n, k]  ~ w[n, k] * weight_scales[n]       |w| <= 127
    sums[t, n]    = sum over k of q[t, k] * w[n, k]
    out[t, n]     = float(sums[t, n]) * row_scales[t] * weight_scales[n] + bias[n]

    q        int16 [T, K']           K' = K rounded up to the next even number
    weight   int8 [N', K]            packed as [N'/16, K'/2, 16, 2]: 16 outputs side by side, two
                                     inputs together; N' = N rounded up to a multiple of 16
    out      float32 [T, N']

No sum can leave int32, so its value depends on nothing but the row and the weight, in whatever
order and on however many threads it is computed. A pair of int16 products added to one int32 is
a single instruction of AVX2, AVX-512 and VNNI; the tile below is written in portable vector
operations that LLVM turns into it, and into plain multiplications on other CPUs.
"""

import numpy as np
from llvmlite import ir
from numba import njit, types
from numba.extending import intrinsic

BLOCK = 16  # outputs of a packed block
WEIGHT_LEVELS = 127
_PAIR = 2  # inputs of a packed block that lie together
_INT32_LIMIT = 2**31 - 1
_INT16_LIMIT = 2**15 - 1


def activation_levels(num_inputs: int) -> int:
    """The largest |q| with which no sum of so many products leaves int32."""
    return min(_INT16_LIMIT, _INT32_LIMIT // (WEIGHT_LEVELS * num_inputs))


def quantise_weight(weight: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """float32 [N, K] to packed int8 blocks and scales float32 [N'], one per output."""
    largest = np.abs(weight).max(axis=1)
    scales = np.where(largest > 0, largest / WEIGHT_LEVELS, 1).astype(np.float32)
    levels = np.rint(weight / scales[:, None]).astype(np.int8)
    return pack_weight(levels), pad_outputs(scales)


def pack_weight(levels: np.ndarray) -> np.ndarray:
    """int8 [N, K] to [N'/16, K'/2, 16, 2], padded with zeros."""
    num_outputs, num_inputs = levels.shape
    padding = ((0, -num_outputs % BLOCK), (0, -num_inputs % _PAIR))
    padded = np.pad(levels, padding)
    blocks = padded.reshape(-1, BLOCK, padded.shape[1] // _PAIR, _PAIR)
    return np.ascontiguousarray(blocks.transpose(0, 2, 1, 3))


def unpack_weight(blocks: np.ndarray) -> np.ndarray:
    """int8 [N', K']: the inverse of `pack_weight`, padding kept."""
    num_blocks, num_pairs = blocks.shape[:2]
    return blocks.transpose(0, 2, 1, 3).reshape(num_blocks * BLOCK, num_pairs * _PAIR)


def pad_outputs(vector: np.ndarray) -> np.ndarray:
    """[N] to [N'], padded with zeros."""
    return np.pad(vector, (0, -len(vector) % BLOCK))


def int8_linear_reference(
    q: np.ndarray,
    row_scales: np.ndarray,
    blocks: np.ndarray,
    weight_scales: np.ndarray,
    bias: np.ndarray,
) -> np.ndarray:
    """The formula of the module docstring in NumPy; float32 [T, N']."""
    sums = q.astype(np.int64) @ unpack_weight(blocks).astype(np.int64).T
    return sums.astype(np.float32) * row_scales[:, None] * weight_scales + bias


def int8_linear(
    q: np.ndarray,
    row_scales: np.ndarray,
    blocks: np.ndarray,
    weight_scales: np.ndarray,
    bias: np.ndarray,
) -> np.ndarray:
    """`int8_linear_reference`, to the bit, on one thread."""
    out = np.empty((len(q), len(weight_scales)), np.float32)
    linear_share(q, row_scales, (blocks, weight_scales, bias), out, 0, 1)
    return out


@njit(cache=True, nogil=True, error_model="numpy")
def linear_share(q, row_scales, linear, out, worker, num_workers):  # type: ignore[no-untyped-def]
    """Worker's part of the outputs, for all rows. linear: blocks, weight scales, bias."""
    blocks, weight_scales, bias = linear
    num_rows, num_blocks, num_pairs = len(row_scales), blocks.shape[0], blocks.shape[1]
    block_bytes = num_pairs * BLOCK * _PAIR
    for block in range(
        num_blocks * worker // num_workers, num_blocks * (worker + 1) // num_workers
    ):
        column = 4 * BLOCK * block
        weight_side = (
            blocks.ctypes.data + block * block_bytes,
            weight_scales.ctypes.data + column,
            bias.ctypes.data + column,
            num_pairs,
        )
        for row in range(0, num_rows, _TILE_ROWS):
            row_side = (
                q.ctypes.data + 2 * row * q.shape[1],
                row_scales.ctypes.data + 4 * row,
                out.ctypes.data + 4 * row * out.shape[1] + column,
                q.shape[1] // _PAIR,
                out.shape[1],
            )
            _tile_of(min(num_rows - row, _TILE_ROWS), row_side, weight_side)


# Rows of the largest tile: with two vectors of sums for each it fills AVX2's registers.
_TILE_ROWS = 6


@njit(inline="always")
def _tile_of(num_rows, row_side, weight_side):  # type: ignore[no-untyped-def]
    if num_rows == 6:
        _tile(6, row_side, weight_side)
    elif num_rows == 5:
        _tile(5, row_side, weight_side)
    elif num_rows == 4:
        _tile(4, row_side, weight_side)
    elif num_rows == 3:
        _tile(3, row_side, weight_side)
    elif num_rows == 2:
        _tile(2, row_side, weight_side)
    else:
        _tile(1, row_side, weight_side)


_I32, _I64, _F32 = ir.IntType(32), ir.IntType(64), ir.FloatType()
_SUMS = ir.VectorType(_I32, BLOCK)
_FLOATS = ir.VectorType(_F32, BLOCK)
_INT8S = ir.VectorType(ir.IntType(8), BLOCK * _PAIR)
_INT16S = ir.VectorType(ir.IntType(16), BLOCK * _PAIR)
_PRODUCTS = ir.VectorType(_I32, BLOCK * _PAIR)


@intrinsic(prefer_literal=True)
def _tile(context, num_rows, row_side, weight_side):  # type: ignore[no-untyped-def]
    """One block of outputs for num_rows rows, all sums in registers.

    row_side: addresses of q, row scales and out; distance of rows in q (pairs) and in out.
    weight_side: addresses of the block, its scales and its bias; number of pairs.
    """

    def codegen(context, builder, signature, arguments):  # type: ignore[no-untyped-def]
        q, row_scales, out, q_stride, out_stride = _unpacked(builder, arguments[1])
        weight, weight_scales, bias, num_pairs = _unpacked(builder, arguments[2])
        rows = [ir.Constant(_I64, row) for row in range(num_rows.literal_value)]
        sums = _sum_loop(builder, rows, (q, q_stride), weight, num_pairs)
        by_output = _load(builder, weight_scales, _FLOATS), _load(builder, bias, _FLOATS)
        for row, row_sums in zip(rows, sums, strict=True):
            row_scale = _load(builder, _at(builder, row_scales, 4, row), _F32)
            scaled = builder.fmul(builder.sitofp(row_sums, _FLOATS), _spread(builder, row_scale))
            result = builder.fadd(builder.fmul(scaled, by_output[0]), by_output[1])
            address = _at(builder, out, 4, builder.mul(row, out_stride))
            builder.store(result, builder.inttoptr(address, _FLOATS.as_pointer()), align=4)
        return context.get_dummy_value()

    return types.void(num_rows, row_side, weight_side), codegen


def _sum_loop(builder, rows, q_side, weight, num_pairs):  # type: ignore[no-untyped-def]
    """Emit the loop over pairs of inputs; returns the int32 sums of every row."""
    q, q_stride = q_side
    before, loop, after = (
        builder.block,
        builder.append_basic_block("pairs"),
        builder.append_basic_block("scale"),
    )
    builder.branch(loop)
    builder.position_at_end(loop)
    pair = builder.phi(_I64)
    old = [builder.phi(_SUMS) for _ in rows]
    levels = _load(builder, _at(builder, weight, BLOCK * _PAIR, pair), _INT8S)
    wide = builder.sext(levels, _PRODUCTS)
    new = []
    for row, sums in zip(rows, old, strict=True):
        place = builder.add(builder.mul(row, q_stride), pair)
        both = _spread(builder, _load(builder, _at(builder, q, 4, place), _I32))
        products = builder.mul(builder.sext(builder.bitcast(both, _INT16S), _PRODUCTS), wide)
        added = builder.add(
            _every_second(builder, products, 0), _every_second(builder, products, 1)
        )
        new.append(builder.add(sums, added))
    following = builder.add(pair, ir.Constant(_I64, 1))
    pair.add_incoming(ir.Constant(_I64, 0), before)
    pair.add_incoming(following, loop)
    for first, last in zip(old, new, strict=True):
        first.add_incoming(ir.Constant(_SUMS, None), before)
        first.add_incoming(last, loop)
    builder.cbranch(builder.icmp_unsigned("<", following, num_pairs), loop, after)
    builder.position_at_end(after)
    return new


def _unpacked(builder, aggregate):  # type: ignore[no-untyped-def]
    return [builder.extract_value(aggregate, i) for i in range(len(aggregate.type.elements))]


def _at(builder, address, size, index):  # type: ignore[no-untyped-def]
    return builder.add(address, builder.mul(index, ir.Constant(_I64, size)))


def _load(builder, address, kind):  # type: ignore[no-untyped-def]
    return builder.load(builder.inttoptr(address, kind.as_pointer()), align=1)


def _spread(builder, scalar):  # type: ignore[no-untyped-def]
    """The scalar in every lane."""
    undefined = ir.Constant(ir.VectorType(scalar.type, BLOCK), ir.Undefined)
    first = builder.insert_element(undefined, scalar, ir.Constant(_I32, 0))
    return builder.shuffle_vector(first, undefined, ir.Constant(_SUMS, [0] * BLOCK))


def _every_second(builder, vector, first):  # type: ignore[no-untyped-def]
    lanes = ir.Constant(_SUMS, list(range(first, BLOCK * _PAIR, _PAIR)))
    return builder.shuffle_vector(vector, ir.Constant(vector.type, ir.Undefined), lanes)
