"""Whether one sequence is drafted for, by what drafting has brought it so far.

The gain of a round is what it brought beyond plain decoding, in tokens: accepted nodes, less what
asking for the tree and verifying its nodes cost in time. While the mean gain is negative, a
sequence decodes plainly for some rounds, then one more tree is tried: in one round of 15, so that
little is lost by asking, and a text that turns round is noticed within 16 rounds.
"""

from dataclasses import dataclass, field

LEAST_ROUNDS = 8  # with trees, before a verdict
PAUSES = (6, 14)  # rounds without: the first time, and later
_WEIGHT = 1.0 / 12.0  # of the last round in the mean, once there are many
_MOST_ASKING = 0.25  # tokens: a machine that hangs for a moment is no verdict
_TIME_WEIGHT = 1.0 / 32.0  # of the last step in mean times
_MOST_TIMES = 3.0  # times a plain step that a step counts for


@dataclass
class StepTimes:
    """How long steps take, plain and with trees: what asking really costs, all of it counted."""

    plain_ms: dict[int, float] = field(default_factory=dict)  # by running sequences
    extra_ms: float = 0.0  # of a step with trees over a plain one, for each sequence asked for
    num_extra: int = 0

    def add(self, step_ms: float, num_running: int, num_asked: int) -> None:
        """A step that computed no prompt."""
        plain_ms = self.plain_ms.get(num_running)
        if num_asked == 0:
            shown_ms = step_ms if plain_ms is None else min(step_ms, _MOST_TIMES * plain_ms)
            weight = 1.0 if plain_ms is None else _TIME_WEIGHT
            self.plain_ms[num_running] = (plain_ms or 0.0) * (1.0 - weight) + weight * shown_ms
        elif plain_ms is not None:
            shown_ms = min(step_ms, _MOST_TIMES * plain_ms)
            self.num_extra += 1
            weight = max(1.0 / self.num_extra, _TIME_WEIGHT)
            self.extra_ms += weight * ((shown_ms - plain_ms) / num_asked - self.extra_ms)

    def asking_tokens(self, num_running: int, estimated: float) -> float:
        """What asking for one tree costs, in tokens; the estimate while too little was measured.

        It is not believed to be more than twice the estimate: plain steps may have been measured
        when the machine had less to do.
        """
        plain_ms = self.plain_ms.get(num_running)
        if plain_ms is None or self.num_extra < LEAST_ROUNDS:
            return estimated
        measured = max(self.extra_ms, 0.0) * num_running / max(plain_ms, 1e-6)
        return min(measured, 2.0 * estimated)


def estimated_asking_tokens(
    num_nodes: int, price: float, asking_ms: float, token_ms: float
) -> float:
    """What asking for one tree costs by what its parts took.

    price: of a node, in tokens. asking_ms: drafting and selecting for one sequence. token_ms: time
    in which the step brings one token plainly.
    """
    return num_nodes * price + min(asking_ms / max(token_ms, 1e-6), _MOST_ASKING)


@dataclass
class DraftHistory:
    """Of one sequence."""

    gain: float = 0.0  # mean, in tokens a round
    num_rounds: int = 0  # that it is the mean of
    num_pauses: int = 0
    num_left: int = 0  # rounds of the present pause

    def asks(self, is_skipped: bool) -> bool:
        """Whether to ask for a tree in this round; to be called in every round.

        is_skipped: drafting does not pay for the sequences together. One that is new is asked for
        all the same, and so is one whose own gain is positive.
        """
        if self.num_left > 0:
            self.num_left -= 1
            return False
        is_paused = self.num_pauses > 0 and self.num_rounds == LEAST_ROUNDS - 1
        return not (is_skipped and is_paused)

    def add(self, gain: float) -> None:
        """A round that was asked for."""
        self.num_rounds += 1
        self.gain += max(1.0 / self.num_rounds, _WEIGHT) * (gain - self.gain)
        if self.num_rounds >= LEAST_ROUNDS and self.gain < 0.0:
            self.num_left = PAUSES[min(self.num_pauses, len(PAUSES) - 1)]
            self.num_pauses += 1
            self.gain, self.num_rounds = 0.0, LEAST_ROUNDS - 1  # the next round alone decides


@dataclass
class DraftHistories:
    """Of all sequences whose nodes have a price; fixed policies draft even at a loss."""

    _histories: dict[int, DraftHistory] = field(default_factory=dict)

    def asks(self, sequence_id: int, is_priced: bool, is_skipped: bool) -> bool:
        """As DraftHistory.asks."""
        if not is_priced:
            return not is_skipped
        return self._histories.setdefault(sequence_id, DraftHistory()).asks(is_skipped)

    def add(self, sequence_id: int, gain: float) -> None:
        """As DraftHistory.add; nothing for a sequence without a history."""
        if history := self._histories.get(sequence_id):
            history.add(gain)

    def finish(self, sequence_id: int) -> None:
        """Drop a sequence."""
        self._histories.pop(sequence_id, None)
