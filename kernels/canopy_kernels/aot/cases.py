"""Every kernel at sizes that it is launched with."""

from typing import Any

import torch

from canopy_kernels.aot.attention_cases import attention_cases
from canopy_kernels.aot.case import POINTERS, KernelCase
from canopy_kernels.attention import paged_kv
from canopy_kernels.dense import batch_invariant_linear as linear
from canopy_kernels.dense import rms_norm
from canopy_kernels.sampling import block_sums, thresholds, traversal, tree_walk
from canopy_kernels.sampling import coupled_argmax as argmax
from canopy_kernels.sampling import recursive_rejection as rejection


def _linear(dtype: torch.dtype) -> KernelCase:
    pointer = POINTERS[dtype]
    tiling = linear.LinearTiling.of(dtype)
    return KernelCase(
        linear._multiply_part_kernel,
        pointer[1:],
        {
            "tensors": (pointer, pointer, "*fp32"),
            "num_rows": "i32",
            "num_outs": "i32",
            "inner": "i32",
            "row_stride": "i32",
            "split": "i32",
        },
        {"ROWS": tiling.rows, "OUTS": tiling.outs, "INNER": tiling.inner},
        {"num_warps": tiling.num_warps, "num_stages": tiling.num_stages},
        multiples_of_16=((2,), (3,), (4,), (5,)),
    )


def _sparse_walk(kernel: Any, options: dict[str, int]) -> KernelCase:
    return KernelCase(
        kernel,
        "bf16 logits, 256 nodes, rows of 32, vocabulary 256k",
        {
            "target": ("*bf16", "*fp32", "*fp64"),
            "trees": ("*i32", "*i32", "*i32"),
            "rows": ("*i32", "*i32", "*fp32"),
            "noise": ("*i64", "*i64"),
            "verdicts_ptr": "*i32",
            "vocab_size": "i32",
            "num_parts": "i32",
            "logits_stride": "i32",
            "verdict_stride": "i32",
        },
        {"NODES": 512, "ROW": 32, "PARTS": 256, "PART": block_sums.PART},
        options,
    )


_OTHERS = [
    _linear(torch.bfloat16),
    _linear(torch.float32),
    KernelCase(
        linear._add_parts_kernel,
        "bf16, with bias",
        {"tensors": ("*fp32", "*bf16", "*bf16"), "num_outs": "i32", "num_splits": "i32"},
        {"HAS_BIAS": 1, "BLOCK": linear.SUM_BLOCK},
    ),
    KernelCase(
        rms_norm._rms_norm_kernel,
        "bf16, width 8192",
        {
            "tensors": ("*bf16", "*bf16", "*bf16"),
            "num_weights": "i32",
            "width": "i32",
            "eps": "fp32",
        },
        {"BLOCK": 8192},
    ),
    KernelCase(
        paged_kv._write_kv_kernel,
        "bf16, width 1024",
        {
            "keys_ptr": "*bf16",
            "values_ptr": "*bf16",
            "slots_ptr": "*i64",
            "new_keys_ptr": "*bf16",
            "new_values_ptr": "*bf16",
            "key_stride": "i32",
            "value_stride": "i32",
            "width": "i32",
        },
        {"CHUNK": paged_kv.WRITE_CHUNK},
    ),
    KernelCase(
        paged_kv._commit_kv_kernel,
        "bf16, 16 moves",
        {
            "keys_ptr": "*bf16",
            "values_ptr": "*bf16",
            "sources_ptr": "*i64",
            "destinations_ptr": "*i64",
            "num_slots": "i32",
            "num_moves": "i32",
            "width": "i32",
        },
        {"MOVES": 16, "CHUNK": paged_kv.MOVE_ELEMENTS // 16},
    ),
    KernelCase(
        thresholds._row_thresholds_kernel,
        "float32 logits",
        {
            "logits_ptr": "*fp32",
            "temperatures_ptr": "*fp32",
            "top_ks_ptr": "*i32",
            "top_ps_ptr": "*fp32",
            "min_floors_ptr": "*fp32",
            "thresholds_ptr": "*fp32",
            "vocab_size": "i32",
            "row_stride": "i32",
        },
        {},
        thresholds.OPTIONS,
    ),
    KernelCase(
        argmax._part_argmax_kernel,
        "bf16 logits",
        {
            "logits_ptr": "*bf16",
            "thresholds_ptr": "*fp32",
            "seeds_ptr": "*i64",
            "positions_ptr": "*i64",
            "scores_ptr": "*fp64",
            "part_ids_ptr": "*i32",
            "vocab_size": "i32",
            "row_stride": "i32",
        },
        {"PART": argmax.PART, "TILE": argmax.TILE},
    ),
    KernelCase(
        argmax._best_part_kernel,
        "vocabulary 256k",
        {
            "scores_ptr": "*fp64",
            "part_ids_ptr": "*i32",
            "thresholds_ptr": "*fp32",
            "token_ids_ptr": "*i32",
            "num_parts": "i32",
        },
        {"BLOCK": 64},
    ),
    KernelCase(
        tree_walk._walk_trees_kernel,
        "256 nodes",
        {
            "node_starts_ptr": "*i32",
            "token_ids_ptr": "*i32",
            "parents_ptr": "*i32",
            "decided_ids_ptr": "*i32",
            "verdicts_ptr": "*i32",
            "verdict_stride": "i32",
        },
        {"NODES": 512},
    ),
    KernelCase(
        block_sums._row_masses_kernel,
        "bf16 logits",
        {
            "logits_ptr": "*bf16",
            "thresholds_ptr": "*fp32",
            "masses_ptr": "*fp64",
            "vocab_size": "i32",
            "row_stride": "i32",
        },
        {"PART": block_sums.PART},
    ),
    _sparse_walk(rejection._recursive_rejection_kernel, rejection.OPTIONS),
    _sparse_walk(traversal._traversal_kernel, traversal.OPTIONS),
]


def cases(capability: int) -> list[KernelCase]:
    """Every kernel; what depends on the compute capability is chosen for this one."""
    return [*attention_cases(capability), *_OTHERS]
