"""What the phases of a block drafter's passes hand to each other.

Shapes as in canopy_kernels.int8.block_drafter.
"""

from typing import NamedTuple

import numpy as np

from canopy_kernels.cpu import aligned
from canopy_kernels.int8.layout import padded_outputs
from canopy_kernels.int8.linears import Linears, PackedRows


class BlockSizes(NamedTuple):
    """Numbers per row; those of linears' outputs are padded to whole blocks."""

    block_size: int
    hidden: int  # E
    num_heads: int  # H
    head_dim: int  # D
    inner: int  # I
    hidden_states: int
    qkv: int
    gate_up: int
    key_values: int  # of all layers
    logits: int
    codes: int


class EncodeBuffers(NamedTuple):
    """Of N positions."""

    hidden_states: PackedRows
    fused: np.ndarray  # float32 [N, E*]
    vectors: np.ndarray  # float32 [N, E]
    hidden: PackedRows
    key_values: np.ndarray  # float32 [N, L * 2 * K * D *]


class BlockBuffers(NamedTuple):
    """Of B anchors, R rows."""

    last: PackedRows  # B rows
    copied: PackedRows
    injected: np.ndarray  # float32 [B, E*]
    rows: np.ndarray  # float32 [R, E]
    hidden: PackedRows
    mixed_heads: PackedRows
    inner: PackedRows
    qkv: np.ndarray  # float32 [R, (H + 2K) * D *]
    mixed: np.ndarray  # float32 [R, H, D]
    change: np.ndarray  # float32 [R, E*] what is added to the rows next
    gate_up: np.ndarray  # float32 [R, 2I *]
    decoded: np.ndarray  # float32 [R, E*]
    logits: np.ndarray  # float32 [R, V*]
    codes: np.ndarray  # float32 [R, rank*]


def encode_buffers(sizes: BlockSizes, num_positions: int) -> EncodeBuffers:
    """Fresh ones."""
    return EncodeBuffers(
        hidden_states=Linears.new_rows(num_positions, sizes.hidden_states),
        fused=_floats(num_positions, padded_outputs(sizes.hidden)),
        vectors=_floats(num_positions, sizes.hidden),
        hidden=Linears.new_rows(num_positions, sizes.hidden),
        key_values=_floats(num_positions, sizes.key_values),
    )


def block_buffers(sizes: BlockSizes, num_anchors: int) -> BlockBuffers:
    """Fresh ones."""
    num_rows, hidden = num_anchors * sizes.block_size, padded_outputs(sizes.hidden)
    return BlockBuffers(
        last=Linears.new_rows(num_anchors, sizes.hidden),
        copied=Linears.new_rows(num_rows, sizes.hidden),
        injected=_floats(num_anchors, hidden),
        rows=_floats(num_rows, sizes.hidden),
        hidden=Linears.new_rows(num_rows, sizes.hidden),
        mixed_heads=Linears.new_rows(num_rows, sizes.num_heads * sizes.head_dim),
        inner=Linears.new_rows(num_rows, sizes.inner),
        qkv=_floats(num_rows, sizes.qkv),
        mixed=_floats(num_rows, sizes.num_heads, sizes.head_dim),
        change=_floats(num_rows, hidden),
        gate_up=_floats(num_rows, sizes.gate_up),
        decoded=_floats(num_rows, hidden),
        logits=_floats(num_rows, sizes.logits),
        codes=_floats(num_rows, sizes.codes),
    )


def _floats(*shape: int) -> np.ndarray:
    return aligned.empty(shape, np.float32)
