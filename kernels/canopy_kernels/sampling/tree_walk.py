"""The accepted path when the token after every node is decided already.

    node <- anchor; while a child of node carries decided[node]: node <- that child
    bonus = decided[node]

This is acceptance in the modes where the target alone decides: greedy, coupled, target_only. The
decided tokens come from `coupled_argmax` over all nodes. Ids are exact.
"""

import torch
import triton
import triton.language as tl

from canopy_kernels.sampling.trees import Trees, VerificationResults


def walk_trees(trees: Trees, decided_ids: torch.Tensor) -> VerificationResults:
    """The verdicts of all sequences, in one launch. decided_ids: int32 [N]."""
    assert decided_ids.dtype == torch.int32
    assert decided_ids.shape == trees.parents.shape
    results = VerificationResults.empty(trees)
    if trees.num_sequences > 0:
        _walk_trees_kernel[(trees.num_sequences,)](
            trees.node_starts,
            trees.token_ids,
            trees.parents,
            decided_ids,
            results.table,
            results.table.stride(0),
            trees.padded_nodes,
        )
    return results


@triton.jit(do_not_specialize=["verdict_stride"])
def _walk_trees_kernel(
    node_starts_ptr,  # int32 [S + 1]
    token_ids_ptr,  # int32 [N]
    parents_ptr,  # int32 [N]
    decided_ids_ptr,  # int32 [N]
    verdicts_ptr,  # int32 [S, 2 + max_depth]
    verdict_stride,
    NODES: tl.constexpr,
):
    sequence = tl.program_id(0)
    first = tl.load(node_starts_ptr + sequence)
    num_nodes = tl.load(node_starts_ptr + sequence + 1) - first
    nodes = tl.arange(0, NODES)
    token_ids = tl.load(token_ids_ptr + first + nodes, nodes < num_nodes, -1)
    parents = tl.load(parents_ptr + first + nodes, nodes < num_nodes, -2)
    verdict_ptr = verdicts_ptr + sequence * verdict_stride
    node = 0
    num_accepted = 0
    while node < num_nodes:
        decided = tl.load(decided_ids_ptr + first + node)
        tl.store(verdict_ptr + 1, decided)
        tl.store(verdict_ptr, num_accepted)
        node = tl.min(tl.where((parents == node) & (token_ids == decided), nodes, NODES), 0)
        if node < num_nodes:
            tl.store(verdict_ptr + 2 + num_accepted, node)
            num_accepted += 1
