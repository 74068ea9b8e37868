"""canopy_kernels.attention.tree_attention by the Triton-language kernels.

    tree_mask, work_list   once a step, for all layers
    attend                 every work item
    merge_parts            only where contexts may be split

Scores and sums are float32, and float32 inputs are multiplied in full precision. Tolerance against
the reference, relative above 1: 2e-5 for float32, 1e-2 for 16-bit types, whose softmax weights are
rounded before they meet the values. How contexts are split follows from the whole batch, so a row's
last bits may depend on it; canopy_kernels.attention.batch_invariant_attention has rows that do not.
"""

import math

import torch
import triton

from canopy_kernels.attention.attend import Parts, Tensors, attend_kernel
from canopy_kernels.attention.merge_parts import MERGE_ROWS, merge_parts_kernel
from canopy_kernels.attention.options import PLAIN, AttentionOptions
from canopy_kernels.attention.paged_rows import PagedRows
from canopy_kernels.attention.split_kv import check_inputs
from canopy_kernels.attention.tiling import Kind, Tiling, capability_of, num_programs_on
from canopy_kernels.attention.work_list import WorkShape, fewest_tiles

_LOG2_E = math.log2(math.e)


def launch_tree_attention(
    query: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    rows: PagedRows,
    scale: float,
    options: AttentionOptions = PLAIN,
) -> torch.Tensor:
    """`tree_attention` by the Triton-language kernels; blocks of 16 tokens or more, in powers of 2.

    On a card blocks of 64 and more are read fastest.
    """
    num_rows, num_heads, head_dim = query.shape
    num_kv_heads = keys.shape[1]
    check_inputs(query, keys, values, rows)
    out = torch.empty_like(query)
    if num_rows == 0:
        return out
    group = num_heads // num_kv_heads
    kind = Kind(query.dtype, head_dim, options == PLAIN)
    packed_rows = triton.cdiv(num_rows, max(len(rows.context_lengths), 1)) * group
    tiling = Tiling.of(kind, packed_rows, capability_of(query.device)).within(rows.block_size)
    num_programs = num_programs_on(query.device, tiling)
    max_split_items = max(num_programs // num_kv_heads, 1)
    shape = WorkShape(group, tiling.rows, tiling.keys, options.window, max_split_items)
    work = rows.work_list(shape)
    may_split = fewest_tiles(num_rows, shape) < max_split_items
    parts = _new_parts(query, num_kv_heads, tiling, max_split_items if may_split else 0)
    sinks = query if options.sinks is None else options.sinks
    attend_kernel[(min(num_programs, len(work.tiles) * num_kv_heads),)](
        Tensors(query, keys, values, out, sinks),
        work,
        rows.tree_mask,
        rows.block_tables,
        rows.block_tables.shape[1],
        parts,
        num_kv_heads,
        scale * _LOG2_E,
        group,
        head_dim,
        triton.next_power_of_2(head_dim),
        tiling.rows,
        tiling.keys,
        rows.block_size,
        options.window,
        options.soft_cap * _LOG2_E,
        options.sinks is not None,
        num_warps=tiling.num_warps,
        num_stages=tiling.num_stages,
    )
    if may_split:
        num_tiles = min(len(work.tiles), max_split_items)
        merge_parts_kernel[(num_tiles, num_kv_heads, tiling.rows // MERGE_ROWS)](
            parts,
            out,
            work,
            group,
            head_dim,
            triton.next_power_of_2(head_dim),
            tiling.rows,
            MERGE_ROWS,
        )
    return out


def _new_parts(query: torch.Tensor, num_kv_heads: int, tiling: Tiling, num_items: int) -> Parts:
    shape = (num_items, num_kv_heads, tiling.rows)
    out = query.new_empty((*shape, query.shape[2]), dtype=torch.float32)
    return Parts(out, query.new_empty(shape, dtype=torch.float32))
