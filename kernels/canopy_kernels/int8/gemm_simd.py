"""Blocks of outputs by vector registers; layouts of canopy_kernels.int8.layout.

A pair of int16 products added to one int32 is a single instruction of AVX2, AVX-512 and VNNI; the
tile below is written in portable vector operations that LLVM turns into it, and into plain
multiplications on other CPUs. A lane of the sums holds two of an output's four inputs, so half a
block fills a vector. A tile of rows is packed as int64 [K/4, height], four levels in each.
"""

import functools

import numpy as np
from llvmlite import ir
from numba import njit, types
from numba.core import cgutils
from numba.extending import intrinsic

from canopy_kernels.cpu.simd_ir import (
    FLOAT,
    HALF_FLOATS,
    INT8_PAIRS,
    INT16_PAIRS,
    INT32_PAIRS,
    INT64,
    ZEROS,
    add_pairs,
    broadcast,
    element_address,
    fields,
    has_wide_registers,
    load,
    prefetch_line,
    store,
)
from canopy_kernels.int8.layout import BLOCK, QUAD, tile_height

# Rows of the largest tile, whose sums fill the vector registers: a tree of 16 nodes and its anchor
# where a row's sums are one register, and 6 where they are two of AVX2's sixteen.
MAX_TILE = 17 if has_wide_registers() else 6
_MAX_CHAINS = 8  # additions under way at once
_HALVES = 2  # of a block


@njit(inline="always")
def piece_depth(num_inputs):
    """The depth of the pieces into which the inputs of one block are best cut."""
    return num_inputs


@njit(inline="always")
def packed_size(num_rows, num_inputs):
    """Bytes of so many packed rows."""
    return 2 * num_rows * num_inputs


@njit(cache=True, nogil=True, error_model="numpy")
def pack_row(levels, depth, packed, row, num_rows):
    """Put row `row` of num_rows among the packed ones. levels: int16 [K]; depth divides K."""
    quads = levels.view(np.int64)
    highest = tile_height(num_rows, MAX_TILE)
    first = row // highest * highest
    height = min(num_rows - first, highest)
    tile = packed.view(np.int64)[first * len(quads) :]
    for quad in range(len(quads)):
        tile[quad * height + row - first] = quads[quad]


@njit(cache=True, nogil=True, error_model="numpy")
def block_of_outputs(a_operand, b_operand, out):
    """16 outputs of every row; see canopy_kernels.int8.gemm_amx."""
    packed, num_rows, row_scales = a_operand
    target, stride = out
    height = tile_height(num_rows, MAX_TILE)
    num_inputs = b_operand[2] * b_operand[3]
    for row in range(0, num_rows, height):
        finish = (row_scales + 4 * row, target + 4 * row * stride, stride)
        _tile(min(num_rows - row, height), packed + 2 * row * num_inputs, b_operand, finish)


@intrinsic
def _tile(context, num_rows, rows, b_operand, finish):
    """One block of outputs for 1 to MAX_TILE rows, all sums in registers."""

    def codegen(context, builder, signature, arguments):
        block_fields, finish_fields = (fields(builder, a) for a in arguments[2:])
        after = builder.append_basic_block("tiled")
        choice = builder.switch(arguments[0], after)
        for count in range(1, MAX_TILE + 1):
            case = builder.append_basic_block(f"rows{count}")
            choice.add_case(ir.Constant(arguments[0].type, count), case)
            builder.position_at_end(case)
            _emit_tile(builder, count, arguments[1], block_fields, finish_fields)
            builder.branch(after)
        builder.position_at_end(after)
        return context.get_dummy_value()

    return types.void(num_rows, rows, b_operand, finish), codegen


def _emit_tile(builder, num_rows, rows, b_operand, finish):
    """Half a block after the other where the sums of both do not fit into the registers."""
    if num_rows * _HALVES <= MAX_TILE:
        _emit_halves(builder, num_rows, rows, b_operand, finish, range(_HALVES))
    else:
        for half in range(_HALVES):
            _emit_halves(builder, num_rows, rows, b_operand, finish, [half])


def _emit_halves(builder, num_rows, rows, b_operand, finish, halves):
    """Few rows keep several sums each, since one sum alone waits for its last addition."""
    num_sums = num_rows * len(halves)
    num_chains = 1 << max((min(MAX_TILE, _MAX_CHAINS) // num_sums).bit_length() - 1, 0)
    sums = [
        [[cgutils.alloca_once_value(builder, ZEROS) for _ in range(num_rows)] for _ in halves]
        for _ in range(num_chains)
    ]
    _emit_sums(builder, sums, rows, b_operand, halves)
    for index, half in enumerate(halves):
        chains = [chain[index] for chain in sums]
        totals = [
            functools.reduce(builder.add, map(builder.load, of_row))
            for of_row in zip(*chains, strict=True)
        ]
        _emit_finish(builder, totals, half, b_operand, finish)


def _emit_sums(builder, sums, rows, b_operand, halves):
    """Add the products of all pieces; the chains take turns within a piece."""
    block, distances, num_pieces, depth, *_, ahead = b_operand
    num_quads, step = builder.udiv(depth, INT64(QUAD)), INT64(len(sums))
    whole = builder.mul(builder.udiv(num_quads, step), step)
    with cgutils.for_range(builder, num_pieces, intp=INT64) as pieces:
        distance = load(builder, element_address(builder, distances, 8, pieces.index), INT64)
        weights = builder.add(block, distance)
        before = builder.mul(pieces.index, num_quads)

        def add(quad, chain):
            of_rows = element_address(builder, rows, 8 * len(chain[0]), builder.add(before, quad))
            _emit_products(
                builder, of_rows, (weights, ahead), quad, zip(halves, chain, strict=True)
            )

        with cgutils.for_range_slice(builder, INT64(0), whole, step, INT64) as (quad, _):
            for offset, chain in enumerate(sums):
                add(builder.add(quad, INT64(offset)), chain)
        with cgutils.for_range_slice(builder, whole, num_quads, INT64(1), INT64) as (quad, _):
            add(quad, sums[0])


def _emit_products(builder, rows, piece, quad, sums):
    """Add four inputs of every row of the tile to the sums of each half of the outputs."""
    weights, ahead = piece
    line = element_address(builder, weights, BLOCK * QUAD, quad)
    prefetch_line(builder, builder.add(line, ahead))
    for half, totals in sums:
        at = builder.add(line, INT64(half * BLOCK * QUAD // _HALVES))
        wide = builder.sext(load(builder, at, INT8_PAIRS), INT32_PAIRS)
        for row, total in enumerate(totals):
            four = load(builder, builder.add(rows, INT64(8 * row)), INT64)
            levels = builder.bitcast(broadcast(builder, four, BLOCK // _HALVES), INT16_PAIRS)
            products = builder.mul(builder.sext(levels, INT32_PAIRS), wide)
            added = builder.add(builder.load(total), add_pairs(builder, products))
            builder.store(added, total)


def _emit_finish(builder, totals, half, b_operand, finish):
    """Join what two lanes hold of an output, and scale it. totals: one vector a row."""
    *_, scales, bias, _ = b_operand
    row_scales, out, stride = finish
    offset = INT64(half * BLOCK // _HALVES * 4)
    by_output = [load(builder, builder.add(at, offset), HALF_FLOATS) for at in (scales, bias)]
    for index, total in enumerate(totals):
        row_scale = load(builder, element_address(builder, row_scales, 4, INT64(index)), FLOAT)
        numbers = builder.sitofp(add_pairs(builder, total), HALF_FLOATS)
        scaled = builder.fmul(numbers, broadcast(builder, row_scale, BLOCK // _HALVES))
        result = builder.fadd(builder.fmul(scaled, by_output[0]), by_output[1])
        at = element_address(builder, out, 4, builder.mul(INT64(index), stride))
        store(builder, result, builder.add(at, offset))
