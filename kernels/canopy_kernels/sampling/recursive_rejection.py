"""Recursive rejection over sparse proposal rows: the accepted path and bonus token of every tree.

At a node with target weights p (sum m) and proposal row q, for its children x in order:

    accept x if uniform(index of x) * m q(x) < p(x); otherwise
        p <- (p - m q)+;   m <- sum p;   q <- norm(q without x)

and after the last child the token is drawn from p: the first token whose running sum over ids
passes uniform(number of children) * m. Where the row is empty, q is the point mass on x. The walk
goes on below the accepted child. Weights are exp(scaled) under sampling.filters, uniforms
those of sampling.noise, stream ACCEPT at the position of the token. Children of one node
carry different tokens, temperatures are positive, and a walk that meets a row that cannot be
sampled, or a child that is not in its row, ends with bonus token -1.

All arithmetic on weights is float64, so ids equal the CPU's but where a uniform falls within
rounding (1e-7 relative, from float32's exponential) of the border between two outcomes.

One program walks one tree; `canopy.acceptance` has the same rule in NumPy for the CPU.
"""

import torch
import triton
import triton.language as tl

from canopy_kernels.sampling.block_sums import PART, row_masses, token_weights
from canopy_kernels.sampling.device_noise import uniform_of, word_at
from canopy_kernels.sampling.noise import ACCEPT
from canopy_kernels.sampling.sparse_rows import child_tokens, load_row, sample_residual
from canopy_kernels.sampling.trees import ProposalRows, Trees, VerificationResults, next_child

OPTIONS = {"num_warps": 8}  # with fewer, the part in registers spills
_ACCEPT = tl.constexpr(ACCEPT)


def recursive_rejection(
    trees: Trees,
    rows: ProposalRows,
    logits: torch.Tensor,
    thresholds: torch.Tensor,
    seeds: torch.Tensor,
    positions: torch.Tensor,
) -> VerificationResults:
    """The verdicts of all sequences.

    logits: [N, V], one row per node. thresholds: float32 [N, 4]. seeds: int64 [S], the bits of
    unsigned seeds. positions: int64 [S], where the token below the anchor stands.
    """
    num_nodes, vocab_size = logits.shape
    assert trees.parents.shape == (num_nodes,)
    assert rows.starts.shape == (num_nodes + 1,)
    assert seeds.dtype == positions.dtype == torch.int64
    results = VerificationResults.empty(trees)
    if trees.num_sequences > 0:
        masses = row_masses(logits, thresholds)
        _recursive_rejection_kernel[(trees.num_sequences,)](
            (logits, thresholds, masses),
            (trees.node_starts, trees.token_ids, trees.parents),
            (rows.starts, rows.token_ids, rows.log_probs),
            (seeds, positions),
            results.table,
            vocab_size,
            masses.shape[1],
            logits.stride(0),
            results.table.stride(0),
            trees.padded_nodes,
            rows.padded_length,
            triton.next_power_of_2(masses.shape[1]),
            PART,
            **OPTIONS,
        )
    return results


@triton.jit(do_not_specialize=["verdict_stride"])
def _recursive_rejection_kernel(
    target,  # logits [N, V], thresholds float32 [N, 4], masses float64 [N, parts]
    trees,  # node_starts int32 [S + 1], token_ids int32 [N], parents int32 [N]
    rows,  # starts int32 [N + 1], token_ids int32 [E], log_probs float32 [E]
    noise,  # seeds int64 [S], positions int64 [S]
    verdicts_ptr,  # int32 [S, 2 + max_depth]
    vocab_size,
    num_parts,
    logits_stride,
    verdict_stride,
    NODES: tl.constexpr,
    ROW: tl.constexpr,
    PARTS: tl.constexpr,
    PART: tl.constexpr,
):
    sequence = tl.program_id(0)
    first = tl.load(trees[0] + sequence).to(tl.int64)
    num_nodes = tl.load(trees[0] + sequence + 1) - first
    nodes = tl.arange(0, NODES)
    parents = tl.load(trees[2] + first + nodes, nodes < num_nodes, -2)
    seed, position = tl.load(noise[0] + sequence), tl.load(noise[1] + sequence)
    node = 0
    num_accepted = 0
    while node < NODES:
        row = first + node
        row_source = (target[0] + row * logits_stride, target[1] + row * 4, vocab_size)
        parts = tl.arange(0, PARTS)
        masses = tl.load(target[2] + row * num_parts + parts, parts < num_parts, 0.0)
        ids, probs = load_row(rows, row, ROW)
        siblings = (parents, node, trees[1] + first)
        child, bonus = _decide(
            row_source, masses, ids, probs, siblings, seed, position + num_accepted, PART
        )
        verdict_ptr = verdicts_ptr + sequence * verdict_stride
        if child < NODES:
            tl.store(verdict_ptr + 2 + num_accepted, child)
            num_accepted += 1
        else:
            tl.store(verdict_ptr, num_accepted)
            tl.store(verdict_ptr + 1, bonus)
        node = child


@triton.jit
def _decide(row_source, masses, ids, probs, siblings, seed, position, PART: tl.constexpr):
    """The accepted child and -1, or a number past the last node and the bonus token."""
    parents, node, token_ids_ptr = siblings
    is_deterministic = tl.max(probs, 0) == 0.0
    if is_deterministic:
        ids = child_tokens(siblings, ids)
    weights = token_weights(row_source, ids)
    left = weights
    mass = tl.sum(masses, 0)
    child = next_child(parents, node, node)
    index = 0
    is_sound = mass > 0.0
    is_open = is_sound & (child < parents.shape[0])
    while is_open:
        is_child = ids == tl.load(token_ids_ptr + child)
        per_prob = mass / tl.where(is_deterministic, 1.0, tl.sum(probs, 0))
        proposal = per_prob * tl.where(is_deterministic, is_child.to(tl.float64), probs)
        proposed = tl.sum(tl.where(is_child, proposal, 0.0), 0)
        wanted = tl.sum(tl.where(is_child, left, 0.0), 0)
        is_sound = proposed > 0.0
        uniform = uniform_of(word_at(seed, position, index, _ACCEPT))
        is_open = is_sound & (uniform * proposed >= wanted)
        if is_open:
            residual = tl.maximum(left - proposal, 0.0)
            mass -= tl.sum(left - residual, 0)
            left = residual
            probs = tl.where(is_child, 0.0, probs)
            is_open = mass > 0.0  # else proposal and target are one but for rounding
            if is_open:
                child = next_child(parents, node, child)
                index += 1
                is_open = child < parents.shape[0]
    bonus = -1
    if not is_sound:
        child = child * 0 + parents.shape[0]
    elif child == parents.shape[0]:
        point = mass * uniform_of(word_at(seed, position, index, _ACCEPT))
        bonus = sample_residual(row_source, masses, ids, weights, left, point, PART)
    return child, bonus
