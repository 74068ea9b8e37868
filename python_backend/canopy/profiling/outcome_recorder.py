"""What becomes of drafted nodes: every edge whose parent was accepted, with its score and fate.

The recorder stands in for the tree builder, and has whole proposals verified; it also stands
before the verifier, whose answers tell which nodes were accepted.
"""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from canopy.protocol.messages import BuildReply, BuildRequest, Status, VerifyReply, VerifyRequest
from canopy.protocol.stages import Verifier
from canopy.tree import DraftTree, Forest
from canopy.tree.forest import split_ragged
from canopy.tree.survival import Calibration, fit_calibration

_LEAST_EDGES = 200  # that a fit is worth
_LEAST_RATE = 1e-3
_MOST_RATE = 0.97


@dataclass
class Outcomes:
    """Edges below accepted nodes, and how often a node's j-th child was the one."""

    log_probs: list[float] = field(default_factory=list)
    accepted: list[bool] = field(default_factory=list)
    num_parents: int = 0  # accepted nodes that had children
    num_accepted: list[int] = field(default_factory=list)  # by rank among the siblings

    def add(self, tree: DraftTree, log_probs: np.ndarray, emitted: list[int]) -> None:
        """Follow the emitted tokens down one tree. log_probs: [num_nodes + 1]."""
        node = 0
        for token in emitted:
            children = tree.children[node]
            if not children:
                return
            self.num_parents += 1
            hits = [int(tree.token_ids[child]) == token for child in children]
            self.log_probs += log_probs[children].tolist()
            self.accepted += hits
            if not any(hits):
                return
            rank = hits.index(True)
            missing = rank + 1 - len(self.num_accepted)
            self.num_accepted += [0] * missing
            self.num_accepted[rank] += 1
            node = children[rank]

    @property
    def are_enough(self) -> bool:
        """For a fit."""
        return len(self.accepted) >= _LEAST_EDGES and any(self.accepted)

    def calibration(self) -> Calibration:
        """The fit of all edges seen."""
        return fit_calibration(np.array(self.log_probs), np.array(self.accepted, bool))

    def sibling_rates(self) -> tuple[float, ...]:
        """Acceptance of the first, second, ... child of an accepted node; falling."""
        rates: list[float] = []
        for num in self.num_accepted:
            rate = num / max(self.num_parents, 1)
            rates.append(min([max(rate, _LEAST_RATE), *rates]))
        excess = max(sum(rates) / _MOST_RATE, 1.0)
        return tuple(rate / excess for rate in rates)


def joined(parts: Sequence[Outcomes]) -> Outcomes:
    """All of several recordings."""
    ranks = itertools.zip_longest(*(part.num_accepted for part in parts), fillvalue=0)
    return Outcomes(
        [log_prob for part in parts for log_prob in part.log_probs],
        [is_accepted for part in parts for is_accepted in part.accepted],
        sum(part.num_parents for part in parts),
        [sum(counts) for counts in ranks],
    )


class OutcomeRecorder:
    """`stages.protocol.TreeBuilder` and `Verifier` in one, around the real verifier."""

    def __init__(self, verifier: Verifier) -> None:
        self.outcomes = Outcomes()
        self._verifier = verifier
        self._log_probs: list[np.ndarray] = []

    def build(self, request: BuildRequest) -> BuildReply:
        """Every node of every proposal, within no budget."""
        self._log_probs = split_ragged(request.log_probs, request.num_nodes + 1)
        nodes = [np.arange(1, num + 1, dtype=np.int32) for num in request.num_nodes]
        return BuildReply(
            num_selected=request.num_nodes,
            selected=np.concatenate([np.zeros(0, np.int32), *nodes]),
            draft_next=np.ones(1, np.int32),
            price=np.zeros(1, np.float32),
            log_odds_correction=np.zeros(1, np.float32),
            predicted_ms=np.zeros(1, np.float32),
            load_state=np.zeros(1, np.int32),
            price_ttl_steps=np.ones(1, np.int32),
        )

    def verify(self, request: VerifyRequest) -> VerifyReply:
        """Ask the verifier, and follow its answers down the trees of this step."""
        reply = self._verifier.verify(request)
        trees = Forest(request.num_nodes, request.token_ids, request.parents).unpack()
        emitted = split_ragged(reply.emitted_token_ids, reply.num_emitted)
        scores = iter([logs for logs in self._log_probs if len(logs) > 1])
        self._log_probs = []
        for tree, tokens, status in zip(trees, emitted, reply.status, strict=True):
            if tree.num_nodes:
                logs = next(scores)
                if status == Status.DECODED:
                    self.outcomes.add(tree, logs, tokens.tolist())
        return reply
