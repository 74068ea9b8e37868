"""A block drafter or a DSpark or DFlash head as source, alone or in one tree with lookup.

A step is one pass for all sequences whose context reaches the anchor; trees then grow best-first
from the distributions that it gives, without the network.

Together with lookup, all candidates of a node are weighed by one survival model that was fitted
with this drafter's log-probs among its features (`canopy-train mix`). A drafter without such
weights stands behind the shortest match: it gets what the matches leave open (as an order below
all others in PPM). In both the children of a node never sum above 1:

    estimate(x) = lookup(x) + (1 - sum of lookup) * q(x)
"""

import logging
from collections.abc import Callable, Sequence

import numpy as np

from canopy.drafter.block.model import BlockModel, NextTokens
from canopy.drafter.growth.best_first import BestFirst, Continuations
from canopy.drafter.growth.coupling import coupled
from canopy.drafter.growth.distributions import MIN_COUPLED_CANDIDATES
from canopy.drafter.growth.options import processed
from canopy.drafter.lookup.source import LookupSource
from canopy.drafter.source import DraftSequence, DraftTask
from canopy.protocol.hidden_states import HiddenStates
from canopy.sampling import Acceptance
from canopy.tree import Proposal
from canopy_kernels.ngram.candidates import Drafted, nothing_drafted

logger = logging.getLogger(__name__)

_NUM_RANKED = 16  # candidates of a node where no noise reorders them
_LN2 = float(np.log(2.0))
_NOTHING = Continuations((), (), 0.0)
_NOTHING_DRAFTED = nothing_drafted()


class BlockSource:
    """Proposes what the block drafter, and where given lookup, find probable.

    A pass that fails is counted, and tried again for each sequence alone: the one that it fails
    for goes without the drafter's part.
    """

    def __init__(
        self,
        model: BlockModel,
        coupling: float,
        lookup: LookupSource | None = None,
        is_joint: bool = False,
    ) -> None:
        """is_joint: lookup's weights know the drafter's candidates."""
        self.num_failures = 0
        self._model = model
        self._coupling = coupling
        self._lookup = lookup
        self._is_joint = is_joint

    def take_hidden_states(self, hidden_states: dict[int, HiddenStates]) -> None:
        """Positions that the target has computed, by sequence."""
        self._model.take_hidden_states(hidden_states)

    def propose(self, tasks: Sequence[DraftTask]) -> list[Proposal]:
        """One tree per task, its children deterministic."""
        distributions = self._found(
            [task.sequence for task in tasks if task.settings.node_budget > 0]
        )
        return [self._propose(task, distributions.get(task.sequence.sequence_id)) for task in tasks]

    def finish(self, sequence_id: int) -> None:
        """Drop the sequence's context."""
        self._model.finish(sequence_id)
        if self._lookup:
            self._lookup.finish(sequence_id)

    def _found(self, sequences: Sequence[DraftSequence]) -> dict[int, NextTokens]:
        """What one pass says; where it fails for all, what a pass for each alone says."""
        try:
            return self._model.distributions(sequences)
        except Exception:
            logger.exception("a pass of the block drafter failed")
            self.num_failures += 1
        if len(sequences) == 1:
            return {}
        return {
            i: distribution
            for sequence in sequences
            for i, distribution in self._found([sequence]).items()
        }

    def _propose(self, task: DraftTask, distributions: NextTokens | None) -> Proposal:
        sequence = task.sequence
        known = self._continuations_of(sequence, distributions)
        allowed = processed(known, sequence)
        return BestFirst(task, coupled(allowed, sequence, self._coupling)).grow()

    def _continuations_of(
        self, sequence: DraftSequence, distributions: NextTokens | None
    ) -> Callable[[list[int]], Continuations]:
        """What lookup and the drafter know below the anchor, by path."""
        if self._lookup and self._is_joint:
            return self._lookup.continuations_of(sequence, drafted_by(distributions))
        known = self._lookup.continuations_of(sequence) if self._lookup else lambda path: _NOTHING
        is_coupled = sequence.params.mode is Acceptance.COUPLED
        num = MIN_COUPLED_CANDIDATES if is_coupled else _NUM_RANKED

        def continuations(path: list[int]) -> Continuations:
            found = known(path)
            if distributions is not None and len(path) < distributions.num_rows:
                found = blended(found, distributions.after(path, num))
            return found

        return continuations


def drafted_by(distributions: NextTokens | None) -> Callable[[list[int]], Drafted]:
    """The drafter's best candidates below each path, for lookup to weigh."""

    def drafted(path: list[int]) -> Drafted:
        if distributions is None or len(path) >= distributions.num_rows:
            return _NOTHING_DRAFTED
        token_ids, log_probs, _ = distributions.after(path, _NUM_RANKED)
        return Drafted(token_ids, log_probs)

    return drafted


def blended(
    known: Continuations, distribution: tuple[np.ndarray, np.ndarray, float]
) -> Continuations:
    """Lookup's continuations with the best of the drafter's distribution behind them."""
    token_ids, log_probs, entropy = distribution[0].tolist(), distribution[1], distribution[2]
    if not known.token_ids:
        return Continuations(token_ids, log_probs.tolist(), entropy)
    estimates = dict(zip(known.token_ids, np.exp(known.log_probs).tolist(), strict=True))
    rest = max(1.0 - sum(estimates.values()), 0.0)
    for token_id, prob in zip(token_ids, (rest * np.exp(log_probs)).tolist(), strict=True):
        estimates[token_id] = estimates.get(token_id, 0.0) + prob
    ranked = sorted(estimates, key=lambda token: (-estimates[token], token))
    probs = np.maximum([estimates[token] for token in ranked], 1e-30)
    logs = np.minimum(np.log(probs), 0.0)
    return Continuations(ranked, logs.tolist(), -float(probs @ logs) / _LN2)
