"""The exact distribution of what one round emits, on a toy model.

A round drafts a proposal level by level, lets the policy choose what is verified, and verifies it.
The linter follows every draw and every accept test both ways, through the code that serves
requests (`draw_children`, `decide_token`, `walk`, `traverse`). The round is lossless iff the
emitted tokens, continued by the target's own distribution, follow the target's joint distribution;
since that holds at any prefix, rounds chain to any length.

At a `deterministic` prefix nothing is drawn: the children are point masses on the drafter's most
probable tokens. Greedy, coupled and target_only decide the token y after a node from the target
alone. There the drafter is told y, more than any drafter knows, and still no shape may bias: y
is a function of the noise at its position, so what a round leaves open a later one decides alike.
"""

import math
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cache, lru_cache, partial
from typing import Protocol

import numpy as np
from enumeration import EnumeratingSource, enumerate_outcomes

from canopy.acceptance.rejection import decide_token, draw_children, slot_log_probs
from canopy.acceptance.result import VerificationResult, walk
from canopy.acceptance.traversal import traverse
from canopy.sampling import Acceptance
from canopy.tree import DraftTree, Proposal, ProposalRow

Prefix = tuple[int, ...]
NextTokenDistribution = Callable[[Prefix], np.ndarray]  # prefix -> float64 [V], sum 1
_ANCHOR = -1


class Shape(Protocol):
    """A tree policy with its settings bound: the two decisions of canopy.costs."""

    def widths(self, depth: int, path_log_probs: np.ndarray, entropies: np.ndarray) -> np.ndarray:
        """Slots to open below each node of the level at `depth`."""
        ...

    def select(
        self, parents: np.ndarray, log_probs: np.ndarray, entropies: np.ndarray
    ) -> np.ndarray:
        """Ascending numbers of the drafted nodes to verify."""
        ...


def toy_conditional(seed: int, vocab_size: int) -> NextTokenDistribution:
    """An arbitrary model that holds some tokens for impossible."""

    @cache
    def conditional(prefix: Prefix) -> np.ndarray:
        generator = np.random.default_rng([seed, *prefix])
        weights = generator.dirichlet(np.full(vocab_size, 0.7))
        weights[weights < 0.03] = 0.0
        return weights / weights.sum()

    return conditional


def never(prefix: Prefix) -> bool:
    """No prefix: every child is drawn."""
    return False


def known_before_draw(row: ProposalRow, children: np.ndarray) -> np.ndarray:
    """What an honest drafter reports about drawn children; float32 [n]."""
    return slot_log_probs(row, len(children))


@dataclass(frozen=True)
class Round:
    """One round; a test replaces `report`, `decide` or `traverse` to see the lint fail."""

    target: NextTokenDistribution
    draft: NextTokenDistribution
    shape: Shape
    acceptance: Acceptance
    max_depth: int
    deterministic: Callable[[Prefix], bool] = never  # where drawing modes have point masses
    report: Callable[[ProposalRow, np.ndarray], np.ndarray] = known_before_draw
    decide: Callable[..., int] = decide_token
    traverse: Callable[..., VerificationResult] = traverse

    def error(self) -> float:
        """Largest deviation from the target's probability of any max_depth + 1 tokens."""
        distribution = self.distribution()

        def deviation(prefix: Prefix, expected: float, continued: float) -> float:
            reached = continued + distribution.get(prefix, 0.0)
            if len(prefix) > self.max_depth:
                return abs(reached - expected)
            return max(
                deviation((*prefix, token), expected * probability, reached * probability)
                for token, probability in enumerate(self._target_probs(prefix).tolist())
            )

        # What ends shorter than that is continued by the target.
        return deviation((), 1.0, 0.0)

    def acceptance_length(self) -> float:
        """Expected number of emitted tokens."""
        return sum(
            len(emitted) * probability for emitted, probability in self.distribution().items()
        )

    def distribution(self) -> dict[Prefix, float]:
        """Probability of every token list that the round can emit."""
        distribution: dict[Prefix, float] = defaultdict(float)
        for drafted, draft_probability in enumerate_outcomes(self._draft):
            for emitted, walk_probability in enumerate_outcomes(partial(self._walk, drafted)):
                distribution[emitted] += draft_probability * walk_probability
        return distribution

    def _target_probs(self, prefix: Prefix) -> np.ndarray:
        probs = self.target(prefix)
        if self.acceptance is Acceptance.GREEDY:
            return np.eye(len(probs))[np.argmax(probs)]
        return probs

    def _draft(self, random_source: EnumeratingSource) -> "_Drafted":
        growth = _Growth(self.draft, self.deterministic)
        decided: dict[Prefix, int] = {}
        level = [0]
        for depth in range(self.max_depth):
            widths = self.shape.widths(depth, *growth.facts(level))
            level = [
                child
                for node, width in zip(level, widths, strict=True)
                for child in self._open_slots(growth, node, int(width), decided, random_source)
            ]
        proposal = growth.proposal()
        kept = self.shape.select(proposal.tree.parents, proposal.log_probs, proposal.entropies)
        rows = [proposal.rows[node] for node in (0, *kept)]
        return _Drafted(proposal.tree.subtree(kept), rows, decided)

    def _open_slots(
        self,
        growth: "_Growth",
        node: int,
        width: int,
        decided: dict[Prefix, int],
        random_source: EnumeratingSource,
    ) -> Iterator[int]:
        prefix, row = growth.prefixes[node], growth.rows[node]
        if self.acceptance.draws_children and not row.is_empty:
            children = draw_children(row, width, random_source)
            log_probs = self.report(row, children)
        else:
            children = np.argsort(-self.draft(prefix), kind="stable")
            if not self.acceptance.draws_children:
                decided[prefix] = random_source.sample(self._target_probs(prefix), 0)
                others = children[children != decided[prefix]]
                children = np.concatenate(([decided[prefix]], others))
            children = children[:width]
            log_probs = np.log(np.maximum(self.draft(prefix)[children], 1e-9))
        for token, log_prob in zip(children, log_probs, strict=True):
            yield growth.add(node, int(token), float(log_prob))

    def _walk(self, drafted: "_Drafted", random_source: EnumeratingSource) -> Prefix:
        tree = drafted.tree

        def prefix(node: int) -> Prefix:
            return tuple(int(token) for token in tree.token_ids[tree.path(node)])

        def target_probs(node: int) -> np.ndarray:
            return self.target(prefix(node))

        def decide(node: int) -> int:
            if self.acceptance.draws_children:
                children = [int(tree.token_ids[child]) for child in tree.children[node]]
                return self.decide(target_probs(node), children, drafted.rows[node], random_source)
            if prefix(node) in drafted.decided:
                return drafted.decided[prefix(node)]
            return random_source.sample(self._target_probs(prefix(node)), 0)

        if self.acceptance is Acceptance.TRAVERSAL:
            result = self.traverse(tree, drafted.rows, target_probs, random_source)
            return tuple(result.token_ids(tree))
        emitted = tuple(walk(tree, decide).token_ids(tree))
        while emitted in drafted.decided and len(emitted) <= self.max_depth:
            emitted = (*emitted, drafted.decided[emitted])
        return emitted


@dataclass(frozen=True)
class _Drafted:
    tree: DraftTree
    rows: list[ProposalRow]
    decided: dict[Prefix, int]  # the token after a prefix, where the drafter was told


@dataclass
class _Growth:
    """A proposal under construction."""

    draft: NextTokenDistribution
    deterministic: Callable[[Prefix], bool]
    prefixes: list[Prefix] = field(default_factory=list)
    parents: list[int] = field(default_factory=list)
    log_probs: list[float] = field(default_factory=list)
    path_log_probs: list[float] = field(default_factory=list)
    rows: list[ProposalRow] = field(default_factory=list)
    entropies: list[float] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._append((), -1, 0.0, 0.0)

    def add(self, parent: int, token: int, log_prob: float) -> int:
        path_log_prob = self.path_log_probs[parent] + log_prob
        self._append((*self.prefixes[parent], token), parent, log_prob, path_log_prob)
        return len(self.parents) - 1

    def _append(self, prefix: Prefix, parent: int, log_prob: float, path: float) -> None:
        row, entropy = _row_and_entropy(self.draft, prefix)
        self.prefixes.append(prefix)
        self.parents.append(parent)
        self.log_probs.append(log_prob)
        self.path_log_probs.append(path)
        self.rows.append(ProposalRow.empty() if self.deterministic(prefix) else row)
        self.entropies.append(entropy)

    def facts(self, nodes: list[int]) -> tuple[np.ndarray, np.ndarray]:
        """Path log-probs and entropies of nodes."""
        paths = [self.path_log_probs[node] for node in nodes]
        return np.array(paths, np.float32), np.array(
            [self.entropies[node] for node in nodes], np.float32
        )

    def proposal(self) -> Proposal:
        token_ids = [_ANCHOR, *(prefix[-1] for prefix in self.prefixes[1:])]
        return Proposal(
            DraftTree(np.array(token_ids, np.int32), np.array(self.parents, np.int32)),
            np.array(self.log_probs, np.float32),
            np.array(self.entropies, np.float32),
            self.rows,
        )


@lru_cache(maxsize=1 << 12)
def _row_and_entropy(draft: NextTokenDistribution, prefix: Prefix) -> tuple[ProposalRow, float]:
    probs = draft(prefix)
    token_ids = np.flatnonzero(probs).astype(np.int32)
    log_probs = np.log(probs[token_ids])
    entropy = -float(probs[token_ids] @ log_probs) / math.log(2.0)
    return ProposalRow(token_ids, log_probs.astype(np.float32)), entropy
