"""Traversal verification over sparse proposal rows: whole paths are accepted, leaves first.

At a node that is reached with weight w (1 at the anchor), target p and proposal row q, for its
children x in order:

    weight of x = min(1, w p(x) / q(x)), and then, as if x were rejected,
    S <- sum (w p - q)+;   p <- norm((w p - q)+);   w <- S / (S + 1 - w);   q <- norm(q without x)

Where the row is empty, q is the point mass on x. The accepted node is the first, children before
their parent and in order, whose uniform lies below the w that its children left it; the anchor
always is. The bonus token is drawn from the p that they left. Weights are exp(scaled) under
sampling.filters, uniforms those of sampling.noise, stream ACCEPT at the position of
the token below the anchor: the test of a node has the node's number, the draw of the bonus 0.

Promises and tolerance are those of sampling.recursive_rejection, except that a tree which
holds a row that cannot be sampled or a child that is not in its row, at a node of positive weight,
is refused as a whole: nothing accepted and bonus token -1.

One program judges one tree; `canopy.acceptance` has the same rule in NumPy for the CPU. The weights
of all nodes follow from the tree, the rows and the target alone, from the anchor down; chance
enters by one test a node. So the kernel computes the weights in the order of the nodes, tests all
nodes at once, and looks for the first that passes, leaves before their parents.
"""

import torch
import triton
import triton.language as tl

from canopy_kernels.sampling.block_sums import PART, row_masses, token_weights
from canopy_kernels.sampling.device_noise import uniform_of, word_at
from canopy_kernels.sampling.noise import ACCEPT
from canopy_kernels.sampling.sparse_rows import child_tokens, load_row, sample_residual
from canopy_kernels.sampling.trees import ProposalRows, Trees, VerificationResults, next_child

OPTIONS = {"num_warps": 4}  # with more, registers per thread are few and some spill
_ACCEPT = tl.constexpr(ACCEPT)


def traversal(
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
        _traversal_kernel[(trees.num_sequences,)](
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
def _traversal_kernel(
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
    num_nodes = (tl.load(trees[0] + sequence + 1) - first).to(tl.int32)
    nodes = tl.arange(0, NODES)
    parents = tl.load(trees[2] + first + nodes, nodes < num_nodes, -2)
    seed, position = tl.load(noise[0] + sequence), tl.load(noise[1] + sequence)

    reached = tl.where(nodes == 0, 1.0, 0.0).to(tl.float64)  # [NODES] weights on arrival
    last = reached  # [NODES] weights after the children were offered
    is_sound = num_nodes > 0
    parts = tl.arange(0, PARTS)
    node = 0
    while node < num_nodes:
        weight = tl.sum(tl.where(nodes == node, reached, 0.0), 0)
        is_inner = next_child(parents, node, node) < NODES
        if is_inner & (weight > 0.0):
            row = first + node
            row_source = (target[0] + row * logits_stride, target[1] + row * 4, vocab_size)
            masses = tl.load(target[2] + row * num_parts + parts, parts < num_parts, 0.0)
            ids, probs = load_row(rows, row, ROW)
            mass = tl.sum(masses, 0)
            siblings = (parents, node, trees[1] + first)
            reached, weight, _, _, _, _ = _offer(
                row_source, mass, ids, probs, siblings, weight, reached
            )
            is_sound = is_sound & (mass > 0.0) & (weight >= 0.0)
        last = tl.where(nodes == node, weight, last)
        node += 1

    is_passed = (uniform_of(word_at(seed, position, nodes, _ACCEPT)) < last) | (nodes == 0)
    accepted = _first_in_post_order(parents, is_passed)
    row = first + accepted
    row_source = (target[0] + row * logits_stride, target[1] + row * 4, vocab_size)
    masses = tl.load(target[2] + row * num_parts + parts, parts < num_parts, 0.0)
    ids, probs = load_row(rows, row, ROW)
    mass = tl.sum(masses, 0)
    weight = tl.sum(tl.where(nodes == accepted, reached, 0.0), 0)
    siblings = (parents, accepted, trees[1] + first)
    _, weight, ids, weights, left, scale = _offer(
        row_source, mass, ids, probs, siblings, weight, reached
    )
    point = uniform_of(word_at(seed, position, accepted * 0, _ACCEPT)) * weight / scale
    bonus = sample_residual(row_source, masses, ids, weights, left / scale, point, PART)

    is_sound = is_sound & (mass > 0.0)
    verdict_ptr = verdicts_ptr + sequence * verdict_stride
    depth = _store_path(verdict_ptr + 2, parents, tl.where(is_sound, accepted, 0))
    tl.store(verdict_ptr, depth)
    tl.store(verdict_ptr + 1, tl.where(is_sound, bonus, -1))


@triton.jit
def _offer(row_source, mass, ids, probs, siblings, weight, reached):
    """Offer every child of a node that is reached with `weight`, as if all of them were rejected.

    Returns `reached` with the children's weights, the weight that is left to the node, and its
    measure: `left` at the tokens `ids`, elsewhere `scale` times the target's weights, which are
    `weights` at `ids`. The weight is NaN if a child is not in the row.
    """
    parents, node, token_ids_ptr = siblings
    nodes = tl.arange(0, parents.shape[0])
    is_deterministic = tl.max(probs, 0) == 0.0
    if is_deterministic:
        ids = child_tokens(siblings, ids)
    weights = token_weights(row_source, ids)
    scale = weight / mass
    left = weights * scale
    child = next_child(parents, node, node)
    while child < parents.shape[0]:
        is_child = ids == tl.load(token_ids_ptr + child)
        norm = 1.0 / tl.where(is_deterministic, 1.0, tl.sum(probs, 0))
        proposal = tl.where(is_deterministic, is_child.to(tl.float64), probs * norm)
        proposed = tl.sum(tl.where(is_child, proposal, 0.0), 0)
        offered = tl.sum(tl.where(is_child, left, 0.0), 0) / proposed
        residual = tl.maximum(left - proposal, 0.0)
        total = tl.maximum(weight - tl.sum(left - residual, 0), 0.0)
        rejection = total + (1.0 - weight)
        is_certain = rejection == 0.0  # proposal and target are one but for rounding
        offered = tl.where(is_certain, 1.0, tl.minimum(offered, 1.0))
        divisor = tl.where(is_certain, 1.0, rejection)
        left = residual / divisor
        scale = scale / divisor
        weight = tl.where(proposed > 0.0, total / divisor, float("nan"))
        reached = tl.where(nodes == child, offered, reached)
        probs = tl.where(is_child, 0.0, probs)
        child = next_child(parents, node, child)
    return reached, weight, ids, weights, left, scale


@triton.jit
def _first_in_post_order(parents, is_passed):
    """The first node that passed, where children come before their parent. The anchor passes."""
    nodes = tl.arange(0, parents.shape[0])
    node = _leftmost_leaf(parents, 0)
    while tl.max(tl.where(nodes == node, is_passed, False).to(tl.int32), 0) == 0:
        parent = tl.max(tl.where(nodes == node, parents, -1), 0)
        sibling = next_child(parents, parent, node)
        node = parent
        if sibling < parents.shape[0]:
            node = _leftmost_leaf(parents, sibling)
    return node


@triton.jit
def _leftmost_leaf(parents, node):
    leaf = node
    child = next_child(parents, node, node)
    while child < parents.shape[0]:
        leaf = child
        child = next_child(parents, leaf, leaf)
    return leaf


@triton.jit
def _store_path(path_ptr, parents, node):
    """Write the nodes from below the anchor down to `node`; returns how many they are."""
    nodes = tl.arange(0, parents.shape[0])
    depth = 0
    ancestor = node
    while ancestor > 0:
        ancestor = tl.max(tl.where(nodes == ancestor, parents, -1), 0)
        depth += 1
    place = depth
    while node > 0:
        place -= 1
        tl.store(path_ptr + place, node)
        node = tl.max(tl.where(nodes == node, parents, -1), 0)
    return depth
