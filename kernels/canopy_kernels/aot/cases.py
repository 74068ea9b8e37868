"""Every kernel at sizes that it is launched with, for compilation without a launch.

A signature names the type of each argument that is no constant: "*bf16" is a pointer, "i32" a
number, and a tuple stands for a tuple of arguments.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
import triton

from canopy_kernels.attention import (
    batch_invariant_attention,
    paged_kv,
    split_kv,
    tree_attention_triton,
)
from canopy_kernels.dense import batch_invariant_linear as linear
from canopy_kernels.dense import rms_norm
from canopy_kernels.sampling import block_sums, traversal_triton, tree_walk
from canopy_kernels.sampling import coupled_argmax as argmax
from canopy_kernels.sampling import recursive_rejection_triton as rejection

Signature = dict[str, str | tuple[str, ...]]


@dataclass(frozen=True)
class KernelCase:
    """One kernel with what its launcher fixes at compile time."""

    kernel: Any
    name: str
    signature: Signature
    constants: dict[str, int]
    options: dict[str, int] = field(default_factory=dict)  # num_warps, num_stages
    multiples_of_16: tuple[tuple[int, ...], ...] = ()  # places of such numbers among the arguments

    def full_signature(self) -> Signature:
        """All arguments in order, constants included."""
        types = {**self.signature, **dict.fromkeys(self.constants, "constexpr")}
        return {name: types[name] for name in self.kernel.arg_names}

    def alignment(self) -> dict[tuple[int, ...], list[list[Any]]]:
        """Every pointer is a multiple of 16 bytes, as those of torch's allocations are."""
        places = (*self._pointers(), *self.multiples_of_16)
        return {place: [["tt.divisibility", 16]] for place in places}

    def _pointers(self) -> Iterator[tuple[int, ...]]:
        for index, types in enumerate(self.full_signature().values()):
            if isinstance(types, tuple):
                yield from ((index, i) for i, kind in enumerate(types) if kind.startswith("*"))
            elif types.startswith("*"):
                yield (index,)


def _attention(dtype: torch.dtype, head_dim: int, group: int) -> KernelCase:
    tiling = tree_attention_triton.Tiling.of(dtype, head_dim)
    pointer = {torch.bfloat16: "*bf16", torch.float32: "*fp32"}[dtype]
    return KernelCase(
        tree_attention_triton._attend_part_kernel,
        f"{pointer[1:]}, head_dim {head_dim}, group {group}",
        {
            "tensors": (pointer,) * 3,
            "sequences": ("*i32", "*i32", "i32"),
            "blocks": ("*i32", "i32", "i32"),
            "ancestors": ("*i64", "i32"),
            "parts": ("*fp32", "*fp32", "i32"),
            "scale": "fp32",
        },
        {
            "GROUP": group,
            "HEAD_DIM": head_dim,
            "BLOCK_DIM": triton.next_power_of_2(head_dim),
            "BLOCK_SEQUENCES": 64,
            "TILE_ROWS": tiling.rows,
            "TILE_KEYS": tiling.keys,
        },
        {"num_warps": tiling.num_warps, "num_stages": tiling.num_stages},
    )


def _path_attention(dtype: torch.dtype, head_dim: int, group: int) -> KernelCase:
    pointer = {torch.bfloat16: "*bf16", torch.float32: "*fp32"}[dtype]
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


def _linear(dtype: torch.dtype) -> KernelCase:
    pointer = {torch.bfloat16: "*bf16", torch.float32: "*fp32"}[dtype]
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


def _merge(head_dim: int) -> KernelCase:
    block_dim = triton.next_power_of_2(head_dim)
    return KernelCase(
        tree_attention_triton._merge_parts_kernel,
        f"bf16, head_dim {head_dim}, 33 parts",
        {
            "parts": ("*fp32", "*fp32"),
            "out_ptr": "*bf16",
            "sequences": ("*i32", "*i32", "i32"),
        },
        {"HEAD_DIM": head_dim, "BLOCK_DIM": block_dim, "BLOCK_SEQUENCES": 64, "BLOCK_PARTS": 64},
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


CASES = [
    _attention(torch.bfloat16, 64, 3),
    _attention(torch.bfloat16, 128, 4),
    _attention(torch.bfloat16, 256, 4),
    _attention(torch.float32, 128, 4),
    _attention(torch.float32, 256, 4),
    _merge(128),
    _merge(256),
    _path_attention(torch.bfloat16, 128, 4),
    _path_attention(torch.bfloat16, 256, 4),
    _path_attention(torch.float32, 256, 4),
    KernelCase(
        batch_invariant_attention._merge_path_kernel,
        "bf16, head_dim 256, 32 parts",
        {"parts": ("*fp32", "*fp32"), "out_ptr": "*bf16", "lengths_ptr": "*i32"},
        {"HEAD_DIM": 256, "BLOCK_DIM": 256, "BLOCK_PARTS": split_kv.MAX_SPLITS},
    ),
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
        argmax._part_argmax_kernel,
        "bf16 logits",
        {
            "logits_ptr": "*bf16",
            "laws_ptr": "*fp32",
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
            "laws_ptr": "*fp32",
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
            "laws_ptr": "*fp32",
            "masses_ptr": "*fp64",
            "vocab_size": "i32",
            "row_stride": "i32",
        },
        {"PART": block_sums.PART},
    ),
    _sparse_walk(rejection._recursive_rejection_kernel, rejection.OPTIONS),
    _sparse_walk(traversal_triton._traversal_kernel, traversal_triton.OPTIONS),
]
