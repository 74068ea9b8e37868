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


def round_gain(
    num_accepted: int, num_nodes: int, price: float, asking_ms: float, token_ms: float
) -> float:
    """Tokens that a round gained over plain decoding.

    price: of a node, in tokens. asking_ms: drafting and selecting for this sequence. token_ms: time
    in which the step brings one token plainly.
    """
    asking = min(asking_ms / max(token_ms, 1e-6), _MOST_ASKING)
    return num_accepted - num_nodes * price - asking


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
