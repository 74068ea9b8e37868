"""The acceptance of one tree, by the mode of its sequence.

    greedy, coupled, target_only   a walk; the token after a node is decided by the target alone,
                                   so the emitted tokens do not depend on the tree at all
    rejection                      a walk; the children are accepted or rejected one by one
    traversal                      from the leaves to the anchor, whole paths

The target's distribution at a node is computed where a rule asks for it, and once at most: a walk
asks along the accepted path, traversal also at the inner nodes that were rejected before.
"""

import numpy as np

from canopy.acceptance.distribution import Distribution, greedy_token, target_distribution
from canopy.acceptance.random_source import accept_noise
from canopy.acceptance.rejection import decide_token
from canopy.acceptance.result import VerificationResult, walk
from canopy.acceptance.traversal import traverse
from canopy.sampling import Acceptance, SamplingParams
from canopy.tree import DraftTree, ProposalRow
from canopy_kernels.sampling.noise import gumbel, gumbel_argmax


def accept(
    tree: DraftTree,
    rows: list[ProposalRow],
    logits: np.ndarray,
    params: SamplingParams,
    num_tokens: int,
) -> VerificationResult:
    """Which nodes of the tree are kept, and the token after them.

    rows: one per node, the anchor included; read in the modes that draw children. logits: float32
    [num_nodes + 1, V], as the options of the sequence left them (canopy.logits_processors).
    num_tokens: tokens of the sequence, prompt and anchor included, so that the token below a node
    of depth d stands at position num_tokens + d. Temperature 0 is greedy in every mode. Raises
    ValueError for logits that are not finite and for children that were not drawn from their row.
    """
    depths, vocab_size = tree.depths.tolist(), logits.shape[1]

    def target(node: int) -> Distribution:
        return target_distribution(logits[node], params)

    def decide_greedily(node: int) -> int:
        return greedy_token(logits[node])

    def decide_by_rejection(node: int) -> int:
        children = [int(tree.token_ids[child]) for child in tree.children[node]]
        noise = accept_noise(params.seed, num_tokens + depths[node])
        return decide_token(target(node).weights(vocab_size), children, rows[node], noise)

    def decide_by_noise(node: int) -> int:
        return noisy_argmax(target(node), vocab_size, params.seed, num_tokens + depths[node])

    if params.mode is Acceptance.GREEDY:
        return walk(tree, decide_greedily)
    if params.mode is Acceptance.TRAVERSAL:
        noise = accept_noise(params.seed, num_tokens)
        return traverse(tree, rows, lambda node: target(node).weights(vocab_size), noise)
    if params.mode is Acceptance.REJECTION:
        return walk(tree, decide_by_rejection)
    return walk(tree, decide_by_noise)


def noisy_argmax(target: Distribution, vocab_size: int, seed: int, position: int) -> int:
    """A draw from the target: argmax of log-prob + noise(seed, position, token).

    It is a function of target, seed and position alone; coupled and target_only share it.
    """
    if len(target.token_ids) == vocab_size:
        return gumbel_argmax(target.logits, seed, position)
    noise = gumbel(seed, position, target.token_ids)
    return int(target.token_ids[np.argmax(target.logits.astype(np.float64) + noise)])
