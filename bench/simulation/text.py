"""Text that does not exist: proposals whose nodes are accepted with known probabilities.

A sequence is more or less predictable, and changes as it goes on. Below every node one token
comes true: the first child's with probability `a`, the others' with shares of the rest that fall
by half, or none of them. What the drafter reports is the truth, bent by a constant error of the
log-odds where `error` is not 0.
"""

import heapq
import math
from dataclasses import dataclass

import numpy as np

_LEVELS = np.linspace(0.15, 0.9, 16)  # of predictability
_TEMPLATES = 24  # proposals drawn for each level
_SHARES = (0.4, 0.2, 0.1)  # of what the first child leaves open
_JITTER = 0.12  # of `a` from node to node
_MAX_DEPTH = 8
_CHANGE = 0.08  # chance that a round begins another passage


@dataclass(frozen=True)
class Template:
    """A proposal, with the truth about it."""

    parents: np.ndarray  # int32 [num_nodes + 1]
    log_probs: np.ndarray  # float32, as reported
    children: list[list[int]]
    acceptances: list[float]  # of the edge into each node


class Texts:
    """A pool of proposals of at most `num_nodes`, chains or best-first trees."""

    def __init__(self, num_nodes: int, is_chain: bool, error: float, seed: int) -> None:
        rng = np.random.default_rng(seed)
        self._pool = [
            [_grow(level, num_nodes, is_chain, error, rng) for _ in range(_TEMPLATES)]
            for level in _LEVELS
        ]

    def proposal(self, text: "Text") -> Template:
        """What a drafter offers for a text now."""
        return self._pool[text.level][int(text.rng.integers(_TEMPLATES))]


class Text:
    """One answer as it is written; equal seeds give equal passages."""

    def __init__(self, seed: int) -> None:
        self.rng = np.random.default_rng(seed)
        self.level = self._draw_level()

    def accepted(self, template: Template, nodes: set[int]) -> int:
        """How many of the verified nodes come true, one below the other; then go on."""
        node, num = 0, 0
        while (node := self._next(template, node)) in nodes:
            num += 1
        if self.rng.random() < _CHANGE:
            self.level = self._draw_level()
        return num

    def _next(self, template: Template, node: int) -> int:
        """The child that comes true, or -1."""
        left = self.rng.random()
        for child in template.children[node]:
            left -= template.acceptances[child]
            if left < 0.0:
                return child
        return -1

    def _draw_level(self) -> int:
        return int(self.rng.beta(1.3, 1.6) * len(_LEVELS))


def _grow(
    level: float, num_nodes: int, is_chain: bool, error: float, rng: np.random.Generator
) -> Template:
    parents, edges, depths = [-1], [1.0], [0]
    slots: list[tuple[float, int, int, float]] = []  # minus survival, number, parent, edge

    def push(node: int, survival: float) -> None:
        first = float(np.clip(level + rng.normal(0.0, _JITTER), 0.02, 0.97))
        shares = [first] if is_chain else [first, *((1.0 - first) * s for s in _SHARES)]
        for edge in shares if depths[node] < _MAX_DEPTH else ():
            heapq.heappush(slots, (-survival * edge, len(slots) + 1000 * node, node, edge))

    push(0, 1.0)
    while slots and len(parents) <= num_nodes:
        survival, _, parent, edge = heapq.heappop(slots)
        parents.append(parent)
        edges.append(edge)
        depths.append(depths[parent] + 1)
        push(len(parents) - 1, -survival)
    children: list[list[int]] = [[] for _ in parents]
    for node, parent in enumerate(parents[1:], 1):
        children[parent].append(node)
    reported = [0.0, *(_bent(edge, error) for edge in edges[1:])]
    return Template(np.array(parents, np.int32), np.array(reported, np.float32), children, edges)


def _bent(edge: float, error: float) -> float:
    """Log of the edge with its log-odds moved by `error`."""
    return -math.log1p((1.0 - edge) / edge * math.exp(-error))
