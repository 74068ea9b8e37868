"""Which rows of its own step each row sees: a run of leading rows, and bits for the tree behind it.

The rows of a sequence are a chain, in which each row follows the one before, and a tree behind it.
Row r (numbered within its sequence, as are all below) sees

    rows 0 .. entries[r]                                 its ancestors in the chain, itself in it
    rows chain + j with bit j of bits[r] set             its ancestors in the tree, itself in it

so a prompt needs no bits, and a tree of MAX_TREE rows needs few, however long the chain before it.
"""

from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl

MAX_TREE = 256  # rows behind the chain; the rows of a larger tree see too little
WORD = 64
WORDS = MAX_TREE // WORD
BLOCK = 128
_WORD, _WORDS, _BLOCK = tl.constexpr(WORD), tl.constexpr(WORDS), tl.constexpr(BLOCK)


class TreeMask(NamedTuple):
    """Of T rows in S sequences; what rows behind the last sequence have is undefined."""

    chains: Any  # int32 [S] rows of the chain
    entries: Any  # int32 [T] last row of the chain that is seen, -1 for none
    depths: Any  # int32 [T] distance to the committed context; 0 right behind it
    bits: Any  # int64 [T, WORDS]

    @staticmethod
    def of(parent_rows: torch.Tensor, row_starts: torch.Tensor) -> "TreeMask":
        """In one launch. parent_rows: int32 [T], -1 = the context; row_starts: int32 [S + 1]."""
        num_rows, num_sequences = len(parent_rows), len(row_starts) - 1
        mask = TreeMask(
            parent_rows.new_empty(num_sequences),
            parent_rows.new_empty(num_rows),
            parent_rows.new_empty(num_rows),
            parent_rows.new_empty((num_rows, WORDS), dtype=torch.int64),
        )
        if num_sequences > 0:
            _tree_mask_kernel[(num_sequences,)](parent_rows, row_starts, mask)
        return mask


@triton.jit
def _tree_mask_kernel(parent_rows_ptr, row_starts_ptr, mask):
    sequence = tl.program_id(0)
    first = tl.load(row_starts_ptr + sequence)
    num_rows = tl.load(row_starts_ptr + sequence + 1) - first
    chain = num_rows
    for start in range(0, num_rows, _BLOCK):
        rows = start + tl.arange(0, _BLOCK)
        parents = _parents(parent_rows_ptr, first, rows, rows < num_rows)
        is_break = (parents != rows - 1) & (rows < num_rows)
        chain = tl.minimum(chain, tl.min(tl.where(is_break, rows, num_rows), 0))
    tl.store(mask.chains + sequence, chain)
    for start in range(0, num_rows, _BLOCK):
        rows = start + tl.arange(0, _BLOCK)
        _walk(parent_rows_ptr, first, rows, rows < num_rows, chain, mask)


@triton.jit
def _walk(parent_rows_ptr, first, rows, is_row, chain, mask):
    """Follow the parents of a block of rows to the chain, all rows at once."""
    words = tl.arange(0, _WORDS)
    bits = tl.zeros((_BLOCK, _WORDS), tl.int64)
    num_steps = tl.zeros((_BLOCK,), tl.int32)
    ancestors = rows
    in_tree = is_row & (rows >= chain)
    while tl.max(in_tree.to(tl.int32), 0) > 0:
        place = ancestors - chain
        bit = tl.full((_BLOCK,), 1, tl.int64) << (place % _WORD).to(tl.int64)
        is_word = in_tree[:, None] & ((place // _WORD)[:, None] == words[None, :])
        bits = bits | tl.where(is_word, bit[:, None], 0)
        num_steps += in_tree.to(tl.int32)
        ancestors = tl.where(
            in_tree, _parents(parent_rows_ptr, first, ancestors, in_tree), ancestors
        )
        in_tree = in_tree & (ancestors >= chain)
    places = (first + rows).to(tl.int64)
    tl.store(mask.entries + places, ancestors, is_row)
    tl.store(mask.depths + places, ancestors + num_steps, is_row)
    tl.store(mask.bits + places[:, None] * _WORDS + words[None, :], bits, is_row[:, None])


@triton.jit
def _parents(parent_rows_ptr, first, rows, is_row):
    """int32: the parents of some rows, numbered within the sequence; -1 for the context."""
    parents = tl.load(parent_rows_ptr + first + rows, is_row, -1)
    return tl.where(parents >= 0, parents - first, -1)
