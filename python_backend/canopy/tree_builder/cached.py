"""A tree builder that stands for another one while nothing changes.

The build stage lives in a process of its own, and a hop costs more than the choice itself. Its
replies carry what decided them: while the same number of sequences decodes, nobody waits and
blocks are free, the trees of the next turns follow from that by the same pure functions. What
these turns took is told at the next hop.
"""

from dataclasses import dataclass, field, replace

import numpy as np

from canopy.config import TreeConfig
from canopy.costs.profile import Profile
from canopy.protocol.messages import BuildReply, BuildRequest
from canopy.protocol.stages import TreeBuilder
from canopy.tree_builder.goodput import PriceList, has_blocks
from canopy.tree_builder.selection import clear_at
from canopy.tree_builder.stage import least_drafted, offers_of


class HoldingTreeBuilder:
    """`stages.protocol.TreeBuilder` in front of the stage, at its prices."""

    def __init__(self, stage: TreeBuilder, tree: TreeConfig, profile: Profile) -> None:
        self._stage = stage
        self._tree = tree
        self._sibling_rates = profile.sibling_rates
        self._held: _Held | None = None

    def build(self, request: BuildRequest) -> BuildReply:
        """Select nodes, as the stage would. Raises StageFailed."""
        held, self._held = self._held, None
        if held:
            held.turns.add(request)
            if held.covers(request) and (reply := self._at(held, request)):
                held.num_left -= 1
                self._held = held
                return reply
            request = held.turns.told(request)
        reply = self._stage.build(request)
        if int(reply.hold_turns[0]) > 1:
            self._held = _Held.of(request, reply)
        return reply

    def _at(self, held: "_Held", request: BuildRequest) -> BuildReply | None:
        prices = held.prices
        offers = list(offers_of(request, self._tree, self._sibling_rates, prices.shift))
        cleared = clear_at(offers, prices, held.num_running)
        if cleared is None:
            return None
        chosen, forest = cleared
        return BuildReply(
            num_selected=np.array([len(nodes) for nodes in chosen], np.int32),
            selected=np.concatenate([np.zeros(0, np.int32), *chosen]),
            draft_next=np.ones(1, np.int32),
            theta=np.array([forest.theta], np.float32),
            shift=held.reply.shift,
            least_survival=least_drafted(forest, prices.shift),
            predicted_ms=np.array([forest.cost_ms - prices.beside_ms], np.float32),
            load_state=held.reply.load_state,
            hold_turns=np.ones(1, np.int32),
        )


@dataclass
class _Turns:
    """What the turns since a reply of the stage were told to have taken, one a request."""

    counts: list[np.ndarray] = field(default_factory=list)
    times_ms: list[np.ndarray] = field(default_factory=list)

    def add(self, request: BuildRequest) -> None:
        self.counts.append(request.last_counts)
        self.times_ms.append(request.last_times_ms)

    def told(self, request: BuildRequest) -> BuildRequest:
        """The request with the turn that the stage itself had built, as the only one whose
        forest it knows; beside verifying it took what turns took on average since."""
        counts, times_ms = self.counts[0], self.times_ms[0]
        if counts[0] > 0:
            telling = [t for c, t in zip(self.counts, self.times_ms, strict=True) if c[0] > 0]
            mean_verify, draft, mean_turn = np.mean(telling, axis=0)
            beside = mean_turn - mean_verify
            times_ms = np.array([times_ms[0], draft, times_ms[0] + beside], np.float32)
        return replace(request, last_counts=counts, last_times_ms=times_ms)


@dataclass
class _Held:
    """A reply of the stage, and the turns that it may still stand for."""

    reply: BuildReply
    prices: PriceList
    num_running: int
    num_sequences: int
    num_left: int
    turns: _Turns = field(default_factory=_Turns)

    @staticmethod
    def of(request: BuildRequest, reply: BuildReply) -> "_Held":
        prices = PriceList(
            costs_ms=reply.costs_ms.astype(np.float64),
            goodput=float(reply.goodput[0]),
            theta=float(reply.theta[0]),
            shift=float(reply.shift[0]),
            beside_ms=float(reply.beside_ms[0]),
        )
        num_running, num_sequences = int(request.num_running[0]), len(request.num_nodes)
        num_left = int(reply.hold_turns[0]) - 1
        return _Held(reply, prices, num_running, num_sequences, num_left)

    def covers(self, request: BuildRequest) -> bool:
        """Whether a turn is like the one that the stage was asked about."""
        return (
            self.num_left > 0
            and self.num_running == int(request.num_running[0])
            and self.num_sequences == len(request.num_nodes)
            and not (int(request.num_waiting[0]) or int(request.num_prompt_tokens[0]))
            and has_blocks(self.num_running, int(request.num_free_blocks[0]))
        )
