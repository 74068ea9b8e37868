"""The acceptance of one tree: a walk from the anchor, one decided token a node.

Every mode is a law that decides the next token at a node from the target's logits there. Where a
child carries that token the walk goes on below it, elsewhere the token is the bonus. A node that
is not reached costs nothing, and only `rejection` asks which children there are: in the other
modes the emitted tokens do not depend on the tree at all.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from canopy.acceptance.chance import accept_noise
from canopy.acceptance.distribution import Distribution, greedy_token, target_distribution
from canopy.acceptance.rejection import decide_token
from canopy.sampling import Acceptance, SamplingParams
from canopy.tree import DraftTree, ProposalRow
from canopy_kernels.noise import gumbel, gumbel_argmax


@dataclass(frozen=True)
class Verdict:
    """What a round adds: the drafted nodes on the accepted path, in order, and one token more."""

    path: list[int]
    bonus: int

    def token_ids(self, tree: DraftTree) -> list[int]:
        """The emitted tokens: the path's, then the bonus."""
        return [int(tree.token_ids[node]) for node in self.path] + [self.bonus]


def accept(
    tree: DraftTree,
    rows: list[ProposalRow],
    logits: np.ndarray,
    params: SamplingParams,
    num_tokens: int,
    num_emitted: int,
) -> Verdict:
    """Which nodes of the tree are kept, and the token after them.

    rows: one per node, the anchor included; read in rejection mode only. logits: float32
    [num_nodes + 1, V]. num_tokens: tokens of the sequence, prompt and anchor included, so that
    the token below a node of depth d stands at position num_tokens + d. num_emitted: how many of
    them were emitted. Temperature 0 is greedy in every mode. Raises ValueError for logits that
    are not finite and for children that were not drawn from their row.
    """

    vocab_size = logits.shape[1]

    def decide(node: int) -> int:
        depth = int(tree.depths[node])
        position, emitted = num_tokens + depth, num_emitted + depth
        if params.acceptance is Acceptance.GREEDY or params.temperature == 0.0:
            return greedy_token(logits[node], params, emitted)
        target = target_distribution(logits[node], params, emitted)
        if params.acceptance is Acceptance.REJECTION:
            children = [int(tree.token_ids[child]) for child in tree.children[node]]
            noise = accept_noise(params.seed, position)
            return decide_token(target.weights(vocab_size), children, rows[node], noise)
        return noisy_argmax(target, vocab_size, params.seed, position)

    return walk(tree, decide)


def walk(tree: DraftTree, decide: Callable[[int], int]) -> Verdict:
    """Follow the decided tokens down the tree; `decide(node)` is the token after a node."""
    path: list[int] = []
    node = 0
    while True:
        token = decide(node)
        child = next((c for c in tree.children[node] if tree.token_ids[c] == token), None)
        if child is None:
            return Verdict(path, token)
        path.append(child)
        node = child


def noisy_argmax(target: Distribution, vocab_size: int, seed: int, position: int) -> int:
    """A draw from the target: argmax of log-prob + noise(seed, position, token).

    It is a function of target, seed and position alone; coupled and target_only share it.
    """
    if len(target.token_ids) == vocab_size:
        return gumbel_argmax(target.logits, seed, position)
    noise = gumbel(seed, position, target.token_ids)
    return int(target.token_ids[np.argmax(target.logits.astype(np.float64) + noise)])
