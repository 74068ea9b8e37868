"""Parts of the acceptance rules that read sparse proposal rows: a row, its children, a draw from
what is left.

A walk keeps in registers what its rejections changed, at most a row's length of weights. The rest
of the vocabulary it knows by the masses of its parts, and it looks into one of them only to draw.
"""

import triton
import triton.language as tl

from canopy_kernels.sampling.block_sums import token_weights
from canopy_kernels.sampling.trees import next_child


@triton.jit
def load_row(rows, row, ROW: tl.constexpr):
    """int32 [ROW] ids, -1 behind the last, and float64 [ROW] probs, all 0 in an empty row."""
    slots = tl.arange(0, ROW)
    start = tl.load(rows[0] + row)
    length = tl.load(rows[0] + row + 1) - start
    ids = tl.load(rows[1] + start + slots, slots < length, -1)
    log_probs = tl.load(rows[2] + start + slots, slots < length, float("-inf"))
    return ids, tl.exp(log_probs.to(tl.float64))


@triton.jit
def child_tokens(siblings, ids):
    """`ids` with the tokens of the children in the first places."""
    parents, node, token_ids_ptr = siblings
    slots = tl.arange(0, ids.shape[0])
    child = next_child(parents, node, node)
    index = 0
    while child < parents.shape[0]:
        ids = tl.where(slots == index, tl.load(token_ids_ptr + child), ids)
        child = next_child(parents, node, child)
        index += 1
    return ids


@triton.jit
def sample_residual(row_source, masses, ids, weights, left, point, PART: tl.constexpr):
    """The first token whose running sum of weights passes `point`.

    The weights are the row's, except that `left` replaces `weights` at the tokens `ids`.
    """
    slots = tl.arange(0, ids.shape[0])
    parts = tl.arange(0, masses.shape[0])
    for slot in range(ids.shape[0]):
        removed = tl.sum(tl.where(slots == slot, weights - left, 0.0), 0)
        part_of_slot = tl.sum(tl.where(slots == slot, ids // PART, 0), 0)
        masses -= tl.where(parts == part_of_slot, removed, 0.0)
    part = _first_past(masses, 0.0, point)
    before = tl.sum(tl.where(parts < part, masses, 0.0), 0)
    token_ids = part * PART + tl.arange(0, PART)
    part_weights = token_weights(row_source, token_ids)
    for slot in range(ids.shape[0]):
        token_id = tl.sum(tl.where(slots == slot, ids, 0), 0)
        weight = tl.sum(tl.where(slots == slot, left, 0.0), 0)
        part_weights = tl.where(token_ids == token_id, weight, part_weights)
    return part * PART + _first_past(part_weights, before, point)


@triton.jit
def _first_past(weights, before, point):
    """The first place whose running sum passes `point`, or the last positive one."""
    places = tl.arange(0, weights.shape[0])
    running = before + tl.cumsum(weights, 0)
    is_past = (running > point) & (weights > 0.0)
    first = tl.min(tl.where(is_past, places, weights.shape[0]), 0)
    last = tl.max(tl.where(weights > 0.0, places, 0), 0)
    return tl.minimum(first, last)
