"""A block drafter as source, alone or in one tree with lookup.

HiddenStates of computed positions become keys and values of the drafter's own context, one window a
sequence. A step is one pass for all sequences whose context reaches the anchor; trees then grow
from the laws that it gives, without the network.

Together with lookup, all candidates of a node are weighed by one survival model that was fitted
with this drafter's log-probs among its features (`canopy-train mix`). A drafter without such
weights stands behind the shortest match: it gets what the matches leave open (as an order below
all others in PPM). In both the children of a node never sum above 1:

    estimate(x) = lookup(x) + (1 - sum of lookup) * q(x)
"""

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from canopy.config import Deployment, DrafterConfig
from canopy.drafter.block.combined_weights import load_combined_weights
from canopy.drafter.block.context import BlockContext
from canopy.drafter.block.distributions import BlockDistributions, Copied, MarkovHead
from canopy.drafter.block.markov_head import markov_head
from canopy.drafter.block.prefix_cache import PrefixBlocks
from canopy.drafter.growth.best_first import BestFirst, Continuations
from canopy.drafter.growth.coupling import coupled
from canopy.drafter.growth.distributions import MIN_COUPLED_CANDIDATES
from canopy.drafter.lookup.source import LookupSource
from canopy.drafter.source import DraftSequence, DraftTask
from canopy.model_store.folders import model_folder
from canopy.models.block_drafter.checkpoint import drafter_folder, load_drafter
from canopy.models.block_drafter.network import BlockDrafterConfig
from canopy.models.block_drafter.runner import BlockInputs, BlockRows, BlockRunner
from canopy.models.block_drafter.runner_choice import runner_for
from canopy.protocol.hidden_states import HiddenStates
from canopy.sampling import Acceptance
from canopy.tree import Proposal
from canopy_kernels.ngram.candidates import Drafted, nothing_drafted
from canopy_kernels.ngram.prompt_lookup import COPY_WINDOW, LONGEST_COPIED_MATCH, prompt_lookup

logger = logging.getLogger(__name__)

_NUM_RANKED = 16  # candidates of a node where no noise reorders them
_COPIED_FROM = COPY_WINDOW + LONGEST_COPIED_MATCH  # last tokens
_LN2 = float(np.log(2.0))
_NOTHING = Continuations((), (), 0.0)
_NOTHING_DRAFTED = nothing_drafted()


@dataclass(frozen=True)
class LoadedBlockDrafter:
    """Everything that a pass and its laws need."""

    config: BlockDrafterConfig
    runner: BlockRunner
    embedding: np.ndarray  # float16 [target vocabulary, E]
    head: MarkovHead


def make_block_source(deployment: Deployment, lookup: LookupSource | None) -> "BlockSource":
    """The block drafter of a deployment. Raises InvalidDeployment."""
    drafter, target = deployment.drafter, model_folder(deployment.target.model)
    folder, device = drafter_folder(drafter.model), deployment.target.device
    network = load_drafter(folder, target)
    loaded = LoadedBlockDrafter(
        network.config,
        runner_for(network, folder, device, drafter.threads),
        network.embedding.half().numpy(),
        markov_head(network, is_on=drafter.source != "block"),
    )
    weights = load_combined_weights(folder)
    if lookup is None or weights is None:
        return BlockSource(loaded, drafter, lookup)
    lookup.join(weights)
    return BlockSource(loaded, drafter, lookup, is_joint=True)


class BlockSource:
    """Proposes what the block drafter, and where given lookup, find probable.

    A pass that fails is counted, and tried again for each sequence alone: the one that it fails
    for goes without the drafter's part.
    """

    def __init__(
        self,
        loaded: LoadedBlockDrafter,
        drafter: DrafterConfig,
        lookup: LookupSource | None,
        is_joint: bool = False,
    ) -> None:
        """is_joint: lookup's weights know the drafter's candidates."""
        self.num_failures = 0
        self._loaded = loaded
        self._drafter = drafter
        self._lookup = lookup
        self._is_joint = is_joint
        self._contexts: dict[int, BlockContext] = {}
        self._prefixes = PrefixBlocks()

    def take_hidden_states(self, hidden_states: dict[int, HiddenStates]) -> None:
        """Positions that the target has computed, by sequence."""
        for sequence_id, part in hidden_states.items():
            window = self._loaded.config.window
            self._contexts.setdefault(sequence_id, BlockContext(window)).add(part)

    def propose(self, tasks: Sequence[DraftTask]) -> list[Proposal]:
        """One tree per task, its children deterministic."""
        laws = self._found([task.sequence for task in tasks if task.settings.node_budget > 0])
        return [self._propose(task, laws.get(task.sequence.sequence_id)) for task in tasks]

    def finish(self, sequence_id: int) -> None:
        """Drop the sequence's context."""
        self._contexts.pop(sequence_id, None)
        if self._lookup:
            self._lookup.finish(sequence_id)

    # The pass

    def _found(self, sequences: Sequence[DraftSequence]) -> dict[int, BlockDistributions]:
        """What one pass says; where it fails for all, what a pass for each alone says."""
        try:
            return self._laws(sequences)
        except Exception:
            logger.exception("a pass of the block drafter failed")
            self.num_failures += 1
        if len(sequences) == 1:
            return {}
        return {i: law for sequence in sequences for i, law in self._found([sequence]).items()}

    def _laws(self, sequences: Sequence[DraftSequence]) -> dict[int, BlockDistributions]:
        self._encode(sequences)
        ready = [s for s in sequences if self._reaches_anchor(s)]
        if not ready:
            return {}
        copies = [self._copied(sequence) for sequence in ready]
        rows = self._loaded.runner.propose(self._inputs(ready, copies))
        if not (np.isfinite(rows.logits).all() and np.isfinite(rows.codes).all()):
            raise ValueError("what the drafter says holds NaN or infinity")
        return {
            sequence.sequence_id: BlockDistributions(
                BlockRows(logits, codes),
                self._loaded.head,
                sequence.token_ids[-1],
                self._drafter.num_candidates,
                sequence.params.temperature or 1.0,
                copied,
            )
            for sequence, logits, codes, copied in zip(ready, *rows, copies, strict=True)
        }

    def _encode(self, sequences: Sequence[DraftSequence]) -> None:
        """Take up all features of the sequences that have come, in one call."""
        waiting, parts = list[tuple[BlockContext, list[int]]](), list[HiddenStates]()
        for sequence in sequences:
            context = self._contexts.get(sequence.sequence_id)
            if context and context.pending:
                context.recall(self._prefixes, sequence.token_ids)
                waiting.append((context, sequence.token_ids))
                parts.append(context.pending)
        if not parts:
            return
        positions = np.concatenate([np.arange(part.start, part.end) for part in parts])
        states = np.concatenate([part.states for part in parts])
        vectors, key_values = self._loaded.runner.encode(states, positions.astype(np.int64))
        first = 0
        for (context, token_ids), part in zip(waiting, parts, strict=True):
            end = first + len(part.states)
            context.settle(vectors[end - 1], key_values[first:end])
            context.remember(self._prefixes, token_ids, part.start)
            first = end

    def _reaches_anchor(self, sequence: DraftSequence) -> bool:
        context = self._contexts.get(sequence.sequence_id)
        return context is not None and context.end == len(sequence.token_ids) - 1 > 0

    def _copied(self, sequence: DraftSequence) -> Copied:
        text = np.array(sequence.token_ids[-_COPIED_FROM:], np.int64)
        return Copied(*prompt_lookup(text, self._loaded.config.block_size))

    def _inputs(self, sequences: Sequence[DraftSequence], copies: Sequence[Copied]) -> BlockInputs:
        contexts = [self._contexts[sequence.sequence_id] for sequence in sequences]
        lengths = np.array([len(context.key_values) for context in contexts], np.int64)
        shape = (len(contexts), int(lengths.max()), *contexts[0].key_values.shape[1:])
        key_values = np.zeros(shape, np.float32)
        for padded, context in zip(key_values, contexts, strict=True):
            padded[: len(context.key_values)] = context.key_values
        anchors = [sequence.token_ids[-1] for sequence in sequences]
        embedding = self._loaded.embedding
        return BlockInputs(
            embedding[anchors].astype(np.float32),
            np.stack([context.last for context in contexts]).astype(np.float32),
            np.array([context.end for context in contexts], np.int64),
            key_values,
            lengths,
            embedding[np.stack([copied.token_ids for copied in copies])].astype(np.float32),
            np.array([copied.length for copied in copies], np.int64),
        )

    # The tree

    def _propose(self, task: DraftTask, laws: BlockDistributions | None) -> Proposal:
        sequence = task.sequence
        known = self._continuations_of(sequence, laws)
        return BestFirst(task, coupled(known, sequence, self._drafter.coupling)).grow()

    def _continuations_of(
        self, sequence: DraftSequence, laws: BlockDistributions | None
    ) -> Callable[[list[int]], Continuations]:
        """What lookup and the drafter know below the anchor, by path."""
        if self._lookup and self._is_joint:
            return self._lookup.continuations_of(sequence, drafted_by(laws))
        known = self._lookup.continuations_of(sequence) if self._lookup else lambda path: _NOTHING
        is_coupled = sequence.acceptance is Acceptance.COUPLED
        num = MIN_COUPLED_CANDIDATES if is_coupled else _NUM_RANKED

        def continuations(path: list[int]) -> Continuations:
            found = known(path)
            if laws is not None and len(path) < laws.num_rows:
                found = blended(found, laws.after(path, num))
            return found

        return continuations


def drafted_by(laws: BlockDistributions | None) -> Callable[[list[int]], Drafted]:
    """The drafter's best candidates below each path, for lookup to weigh."""

    def drafted(path: list[int]) -> Drafted:
        if laws is None or len(path) >= laws.num_rows:
            return _NOTHING_DRAFTED
        token_ids, log_probs, _ = laws.after(path, _NUM_RANKED)
        return Drafted(token_ids, log_probs)

    return drafted


def blended(known: Continuations, law: tuple[np.ndarray, np.ndarray, float]) -> Continuations:
    """Lookup's continuations with the best of the drafter's law behind them."""
    token_ids, log_probs, entropy = law[0].tolist(), law[1], law[2]
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
