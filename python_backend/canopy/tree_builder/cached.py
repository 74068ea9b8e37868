"""A tree builder that answers from the last prices of the build stage while nothing changes.

The build stage runs in a process of its own, and a BLS call takes longer than the selection. Its
replies carry the cost curve and the price behind them: while the same number of sequences decodes,
no request waits and KV blocks are free, the next steps select their trees from these by the same
pure functions. The next call to the stage reports what these steps took.
"""

from dataclasses import dataclass, field, replace

import numpy as np

from canopy.config import TreeConfig
from canopy.costs.profile import Profile
from canopy.protocol.messages import BuildReply, BuildRequest
from canopy.protocol.stages import TreeBuilder
from canopy.tree_builder.goodput import CostCurve, has_blocks
from canopy.tree_builder.selection import select_at_prices
from canopy.tree_builder.stage import least_survival_field, rank_proposals


class CachedTreeBuilder:
    """`protocol.stages.TreeBuilder` in front of the stage."""

    def __init__(self, stage: TreeBuilder, tree: TreeConfig, profile: Profile) -> None:
        self._stage = stage
        self._tree = tree
        self._sibling_rates = profile.sibling_rates
        self._cached: _CachedPrices | None = None

    def build(self, request: BuildRequest) -> BuildReply:
        """Select nodes, as the stage would. Raises StageFailed."""
        cached, self._cached = self._cached, None
        if cached:
            cached.steps.add(request)
            if cached.covers(request) and (reply := self._at(cached, request)):
                cached.num_left -= 1
                self._cached = cached
                return reply
            request = cached.steps.measured(request)
        reply = self._stage.build(request)
        if int(reply.price_ttl_steps[0]) > 1:
            self._cached = _CachedPrices.of(request, reply)
        return reply

    def _at(self, cached: "_CachedPrices", request: BuildRequest) -> BuildReply | None:
        prices = cached.prices
        rankings = list(
            rank_proposals(request, self._tree, self._sibling_rates, prices.log_odds_correction)
        )
        selection = select_at_prices(rankings, prices, cached.num_running)
        if selection is None:
            return None
        chosen, budget = selection
        return BuildReply(
            num_selected=np.array([len(nodes) for nodes in chosen], np.int32),
            selected=np.concatenate([np.zeros(0, np.int32), *chosen]),
            draft_next=np.ones(1, np.int32),
            price=np.array([budget.price], np.float32),
            log_odds_correction=cached.reply.log_odds_correction,
            least_survival=least_survival_field(budget, prices.log_odds_correction),
            predicted_ms=np.array([budget.cost_ms - prices.non_verify_ms], np.float32),
            load_state=cached.reply.load_state,
            price_ttl_steps=np.ones(1, np.int32),
        )


@dataclass
class _Steps:
    """Measurements of the steps since a reply of the stage, one per request."""

    counts: list[np.ndarray] = field(default_factory=list)
    times_ms: list[np.ndarray] = field(default_factory=list)

    def add(self, request: BuildRequest) -> None:
        self.counts.append(request.last_counts)
        self.times_ms.append(request.last_times_ms)

    def measured(self, request: BuildRequest) -> BuildRequest:
        """The request with the measurement of the step that the stage built itself, whose trees it
        knows; the time outside verify is the mean over the steps since."""
        counts, times_ms = self.counts[0], self.times_ms[0]
        if counts[0] > 0:
            telling = [t for c, t in zip(self.counts, self.times_ms, strict=True) if c[0] > 0]
            mean_verify, draft, mean_step = np.mean(telling, axis=0)
            beside = mean_step - mean_verify
            times_ms = np.array([times_ms[0], draft, times_ms[0] + beside], np.float32)
        return replace(request, last_counts=counts, last_times_ms=times_ms)


@dataclass
class _CachedPrices:
    """A reply of the stage and how many more steps it may be used for."""

    reply: BuildReply
    prices: CostCurve
    num_running: int
    num_sequences: int
    num_left: int
    steps: _Steps = field(default_factory=_Steps)

    @staticmethod
    def of(request: BuildRequest, reply: BuildReply) -> "_CachedPrices":
        prices = CostCurve(
            costs_ms=reply.costs_ms.astype(np.float64),
            goodput=float(reply.goodput[0]),
            price=float(reply.price[0]),
            log_odds_correction=float(reply.log_odds_correction[0]),
            non_verify_ms=float(reply.non_verify_ms[0]),
        )
        num_running, num_sequences = int(request.num_running[0]), len(request.num_nodes)
        num_left = int(reply.price_ttl_steps[0]) - 1
        return _CachedPrices(reply, prices, num_running, num_sequences, num_left)

    def covers(self, request: BuildRequest) -> bool:
        """Whether the load is that of the step that the stage was asked about."""
        return (
            self.num_left > 0
            and self.num_running == int(request.num_running[0])
            and self.num_sequences == len(request.num_nodes)
            and not (int(request.num_waiting[0]) or int(request.num_prompt_tokens[0]))
            and has_blocks(self.num_running, int(request.num_free_blocks[0]))
        )
