"""The attention kernels at the tile sizes in use."""

import torch
import triton

from canopy_kernels.aot.case import POINTERS, KernelCase
from canopy_kernels.attention import (
    attend,
    batch_invariant_attention,
    merge_parts,
    split_kv,
    tree_mask,
    work_list,
)
from canopy_kernels.attention.options import PLAIN, AttentionOptions
from canopy_kernels.attention.tiling import Kind, Tiling
from canopy_kernels.attention.tree_mask import TreeMask
from canopy_kernels.attention.work_list import WorkList

_WORK = WorkList(*("*i32",) * len(WorkList._fields))
_MASK = TreeMask("*i32", "*i32", "*i32", "*i64")
_PARTS = attend.Parts("*fp32", "*fp32")
_ALL_OPTIONS = AttentionOptions(window=1024, soft_cap=50.0)


def attention_cases(capability: int) -> list[KernelCase]:
    """Tiles of every size, head sizes of published models, at one compute capability."""
    bf16, fp16, fp32 = torch.bfloat16, torch.float16, torch.float32
    return [
        *(_attention(capability, bf16, 128, 4, packed_rows) for packed_rows in (16, 64, 128)),
        *(_attention(capability, bf16, 256, 4, packed_rows) for packed_rows in (16, 128)),
        _attention(capability, bf16, 64, 3, 64),
        _attention(capability, fp16, 80, 8, 16),
        _attention(capability, bf16, 128, 4, 64, _ALL_OPTIONS),
        _attention(capability, fp32, 128, 4, 16),
        _attention(capability, fp32, 256, 4, 16),
        _merge(128),
        _merge(256),
        KernelCase(
            work_list._list_work_kernel,
            "256 sequences",
            {
                "row_starts_ptr": "*i32",
                "context_lengths_ptr": "*i32",
                "num_sequences": "i32",
                "num_rows": "i32",
                "work": _WORK,
                "max_split_items": "i32",
            },
            {"GROUP": 4, "TILE_ROWS": 64, "TILE_KEYS": 64, "WINDOW": 0, "BLOCK_SEQUENCES": 256},
        ),
        KernelCase(
            tree_mask._tree_mask_kernel,
            "any tree",
            {"parent_rows_ptr": "*i32", "row_starts_ptr": "*i32", "mask": _MASK},
            {},
        ),
        _path_attention(bf16, 128, 4),
        _path_attention(bf16, 256, 4),
        _path_attention(fp32, 256, 4),
        KernelCase(
            batch_invariant_attention._merge_path_kernel,
            "bf16, head_dim 256, 32 parts",
            {"parts": _PARTS, "out_ptr": "*bf16", "lengths_ptr": "*i32"},
            {"HEAD_DIM": 256, "BLOCK_DIM": 256, "BLOCK_PARTS": split_kv.MAX_SPLITS},
        ),
    ]


def _attention(
    capability: int,
    dtype: torch.dtype,
    head_dim: int,
    group: int,
    packed_rows: int,
    options: AttentionOptions = PLAIN,
) -> KernelCase:
    tiling = Tiling.of(Kind(dtype, head_dim, options == PLAIN), packed_rows, capability)
    pointer = POINTERS[dtype]
    special = "" if options == PLAIN else ", window, cap and sinks"
    return KernelCase(
        attend.attend_kernel,
        f"{pointer[1:]}, head_dim {head_dim}, group {group}, {tiling.rows} rows{special}",
        {
            "tensors": attend.Tensors(*(pointer,) * 4, "*fp32"),
            "work": _WORK,
            "mask": _MASK,
            "tables_ptr": "*i32",
            "table_width": "i32",
            "parts": _PARTS,
            "num_kv_heads": "i32",
            "scale": "fp32",
        },
        {
            "GROUP": group,
            "HEAD_DIM": head_dim,
            "BLOCK_DIM": triton.next_power_of_2(head_dim),
            "TILE_ROWS": tiling.rows,
            "TILE_KEYS": tiling.keys,
            "PAGE": 64,
            "WINDOW": options.window,
            "SOFT_CAP": options.soft_cap,
            "HAS_SINKS": options != PLAIN,
        },
        {"num_warps": tiling.num_warps, "num_stages": tiling.num_stages},
        min_blocks_per_sm=1 if tiling.rows in (32, 128) or capability == 120 else 2,
        overlaps_copies=dtype.itemsize == 2,
    )


def _merge(head_dim: int) -> KernelCase:
    return KernelCase(
        merge_parts.merge_parts_kernel,
        f"bf16, head_dim {head_dim}, 128 rows",
        {"parts": _PARTS, "out_ptr": "*bf16", "work": _WORK},
        {
            "GROUP": 4,
            "HEAD_DIM": head_dim,
            "BLOCK_DIM": triton.next_power_of_2(head_dim),
            "TILE_ROWS": 128,
            "MERGE_ROWS": merge_parts.MERGE_ROWS,
        },
    )


def _path_attention(dtype: torch.dtype, head_dim: int, group: int) -> KernelCase:
    pointer = POINTERS[dtype]
    tile, options = batch_invariant_attention.tile_of(dtype)
    return KernelCase(
        batch_invariant_attention._attend_path_kernel,
        f"{pointer[1:]}, head_dim {head_dim}, group {group}",
        {
            "tensors": (pointer,) * 3,
            "paths": ("*i32", "*i32", "*i32", "*i32", "*i64"),
            "tables_ptr": "*i32",
            "max_blocks": "i32",
            "block_size": "i32",
            "parts": ("*fp32", "*fp32"),
            "scale": "fp32",
        },
        {
            "GROUP": group,
            "HEAD_DIM": head_dim,
            "BLOCK_DIM": triton.next_power_of_2(head_dim),
            "HEADS": batch_invariant_attention.MIN_HEADS,
            "TILE": tile,
        },
        options,
    )
