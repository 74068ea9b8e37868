"""The price of a drafted node: what verifying it costs the step, in tokens.

A step of R sequences that verifies R anchors and the nodes of a forest brings

    tau = R + sum of survival(node)         tokens expected
    T   = step time of R + N tokens, and what the step costs besides

in `T` milliseconds. With Theta the tokens that a millisecond brings in the long run, a forest is
worth tau - Theta * T, and the best one keeps a node iff

    survival > theta = Theta * dT/dB        the price

for a smooth T. For any T, staircases included: of all forests with N nodes the best is that of
the N largest survivals (it is closed under ancestors, since survival falls along a path), so a
scan over N finds the optimum. The ratio tau / T of one step is maximized by Dinkelbach's
iteration (1967): Theta <- tau / T at the optimum for Theta, until it stays.

Where children are drawn at random, the price must be known before the draw: the scan looks at
all survivals, and so at what was drawn. Such trees pay the price of an earlier step.
"""

import math
from dataclasses import dataclass, replace

import numpy as np

from canopy.tree.survival import correct_log_odds

_SLOPE_WINDOW = 8  # tokens over which a price is averaged: a stair has no slope of its own
_WAITING_WEIGHT = 0.25  # of a full queue on the cost of time: those who wait lose it too
_RESERVED_BLOCKS = 2  # KV blocks that a running sequence should find free
_SMOOTHING = 0.02  # weight of one sequence's last round in the long-run gain
_MIN_ROUNDS = 32
_PRICE_FALL = 0.6  # of the price, that it may fall to from one step to the next

DRAFT_ON_GAIN = 1.02  # drafting starts again above this gain ...
DRAFT_OFF_GAIN = 1.0  # ... and stops below this one
_TRIAL_SHARE = 0.005  # of the time may be lost to drafting just to see whether it pays again
_TRIAL_TURNS = (8, 256)


@dataclass(frozen=True)
class NodeBudget:
    """What the best forest of a step is and brings."""

    num_nodes: int  # of the candidates, those of largest survival
    expected_tokens: float  # tau
    cost_ms: float  # T
    price: float  # the price: kept survivals lie at or above, the others at or below

    @property
    def goodput(self) -> float:
        """Tokens a millisecond."""
        return self.expected_tokens / self.cost_ms


def best_at(
    survivals: np.ndarray, base_tokens: float, costs_ms: np.ndarray, goodput: float
) -> NodeBudget:
    """The forest that maximizes tau - goodput * T; of equal ones the smallest.

    survivals: float [n], falling, of every candidate. base_tokens: expected without any of them.
    costs_ms: float [n + 1 or more], T of the step with 0, 1, ... of them; never falls. What goes
    beyond n + 1 serves the slope of T at the last candidate.
    """
    gathered = np.concatenate(([0.0], np.cumsum(survivals)))
    num_nodes = int(np.argmax(gathered - goodput * costs_ms[: len(gathered)]))
    return NodeBudget(
        num_nodes,
        base_tokens + float(gathered[num_nodes]),
        float(costs_ms[num_nodes]),
        _price(survivals, costs_ms, num_nodes, goodput),
    )


def best_ratio(survivals: np.ndarray, base_tokens: float, costs_ms: np.ndarray) -> NodeBudget:
    """The forest that maximizes tau / T of this step; arguments as for `best_at`."""
    goodput = base_tokens / float(costs_ms[0])
    while True:
        budget = best_at(survivals, base_tokens, costs_ms, goodput)
        if budget.goodput <= goodput:
            return budget
        goodput = budget.goodput


def _price(survivals: np.ndarray, costs_ms: np.ndarray, num_nodes: int, goodput: float) -> float:
    """Theta * dT/dB around the optimum, between the last survival kept and the first left out."""
    high = min(num_nodes + _SLOPE_WINDOW, len(costs_ms) - 1)
    low = max(high - 2 * _SLOPE_WINDOW, 0)
    slope = (costs_ms[high] - costs_ms[low]) / max(high - low, 1)
    kept = survivals[num_nodes - 1] if num_nodes > 0 else math.inf
    left = survivals[num_nodes] if num_nodes < len(survivals) else 0.0
    return float(min(max(goodput * slope, left), kept))


@dataclass(frozen=True)
class CostCurve:
    """What decides a step's forest, so that steps under the same load can do without asking."""

    costs_ms: np.ndarray  # float [n] T of the step with 0, 1, ... nodes
    goodput: float  # Theta, the weight of those who wait included
    price: float  # for nodes whose price must be known before they are drawn
    log_odds_correction: float  # log-odds added to the acceptances
    non_verify_ms: float  # what of T is not verifying

    def best(self, survivals: np.ndarray, base_tokens: float, num_fixed: int) -> NodeBudget | None:
        """`best_at` where so many nodes are verified in any case; None beyond the list."""
        costs_ms = self.costs_ms[num_fixed:]
        if len(costs_ms) <= len(survivals):
            return None
        return best_at(survivals, base_tokens, costs_ms, self.goodput)


def least_survival(price: float, log_odds_correction: float) -> float:
    """Survival, before the shift, under which the step after one of price `price` buys no node.

    What lies lower is drafted in vain. Where the price falls faster, trees follow a step late.
    """
    if price <= 0.0:
        return 0.0
    edge = np.array([0.0, math.log(min(_PRICE_FALL * price, 1.0))])
    return float(np.exp(correct_log_odds(edge, np.array([-1, 0]), -log_odds_correction)[1]))


def has_blocks(num_sequences: int, num_free_blocks: int) -> bool:
    """Whether scratch space costs nothing; see `costs_with_blocks`."""
    return num_free_blocks >= _RESERVED_BLOCKS * num_sequences


def costs_with_blocks(costs_ms: np.ndarray, num_sequences: int, num_free_blocks: int) -> np.ndarray:
    """T with what scratch space costs where the KV cache is nearly full.

    The price of a node rises from nothing to a sequence's share of the step, at which no node is
    worth it, as the free blocks sink below a small reserve for each sequence.
    """
    reserve = _RESERVED_BLOCKS * num_sequences
    pressure = max(0.0, 1.0 - max(num_free_blocks, 0) / max(reserve, 1))
    per_node = pressure * costs_ms[0] / max(num_sequences, 1)
    return costs_ms + per_node * np.arange(len(costs_ms))


def time_weight(num_running: int, num_waiting: int) -> float:
    """What a millisecond costs, 1 without a queue: a step also delays those who wait."""
    waiting = max(num_waiting, 0)
    return 1.0 + _WAITING_WEIGHT * waiting / max(waiting + num_running, 1)


@dataclass(frozen=True)
class SpeedupAverage:
    """What speculation gained lately over plain decoding, in tokens and in time.

    Both are ratios, so they stay when the number of sequences changes, and Theta of the next step
    is the plain goodput of that step times `gain`.
    """

    tokens: float = 1.0  # tau / R
    time: float = 1.0  # T / T of the anchors alone
    num_rounds: int = 0

    @property
    def gain(self) -> float:
        return self.tokens / self.time

    @property
    def is_converged(self) -> bool:
        """Enough rounds for a verdict."""
        return self.num_rounds >= _MIN_ROUNDS

    def after(self, tokens: float, time: float, num_rounds: int) -> "SpeedupAverage":
        """The means with a step of so many rounds; plain means until there are many."""
        total = self.num_rounds + num_rounds
        weight = max(1.0 - (1.0 - _SMOOTHING) ** num_rounds, num_rounds / total)
        return SpeedupAverage(
            self.tokens + weight * (tokens - self.tokens),
            self.time + weight * (time - self.time),
            total,
        )


@dataclass(frozen=True)
class DraftGate:
    """Whether to draft: with hysteresis, and ever rarer trials while it does not pay."""

    is_on: bool = True
    num_failures: int = 0  # times that it was switched off since it last paid

    def after(self, speedup_average: SpeedupAverage) -> "DraftGate":
        """The switch, on until now, by the gain with drafting paid for."""
        if not speedup_average.is_converged:
            return self
        if speedup_average.gain < DRAFT_OFF_GAIN:
            return DraftGate(False, self.num_failures + 1)
        return DraftGate() if speedup_average.gain >= DRAFT_ON_GAIN else self

    def after_trial(self, gain: float) -> "DraftGate":
        """The switch, off until now, by the gain of one step."""
        return replace(self, is_on=gain >= DRAFT_ON_GAIN)

    def next_draft(self, draft_ms: float, step_ms: float) -> int:
        """Steps until the next draft; 1 = the coming step."""
        if self.is_on:
            return 1
        fewest, most = _TRIAL_TURNS
        affordable = draft_ms / (_TRIAL_SHARE * max(step_ms, 1e-3))
        patience = 2.0 ** min(self.num_failures - 1, 16)
        return int(min(max(affordable, fewest) * patience, most))
