"""What the price of a turn is made of, and what the tree builder learns from turn to turn.

An `Economy` is a value: `observed` gives the one after a turn was measured, `settled` the one
after the forest of a turn was chosen. It knows of no sequence.
"""

from dataclasses import dataclass, replace

import numpy as np

from canopy.costs.cost_model import CostCorrection, CostModel, TurnTimes
from canopy.costs.profile import Profile
from canopy.tree.survival import corrected_shift
from canopy.tree_builder.goodput import (
    DraftSwitch,
    Forest,
    LongRun,
    PriceList,
    best_at,
    best_ratio,
    costs_with_blocks,
    time_weight,
)

_COSTS_BEYOND = 16  # tokens beyond the last candidate, for the slope there


@dataclass(frozen=True)
class MeasuredTurn:
    """The turn before this one; no sequence = it tells nothing."""

    num_sequences: int = 0
    num_drafted: int = 0
    num_accepted: int = 0
    verify_ms: float = 0.0
    draft_ms: float = 0.0
    turn_ms: float = 0.0


@dataclass(frozen=True)
class TurnLoad:
    """Whom a turn serves."""

    num_running: int  # at least 1
    num_waiting: int
    num_free_blocks: int
    num_prompt_rows: int = 0  # of prompts that are computed in the same step
    verifier_queue: float = 0.0  # other executions that the verifier has to do first

    @property
    def num_queued(self) -> int:
        """Sequences that wait, those of others at the verifier included."""
        return self.num_waiting + round(self.verifier_queue * self.num_running)


@dataclass(frozen=True)
class Candidates:
    """What the sequences of a turn offer to be verified."""

    survivals: np.ndarray  # float64 [n], falling: nodes that have to be worth their price
    num_admitted: int = 0  # nodes let in at the price of the last turn
    num_unpriced: int = 0  # nodes that are verified whatever they cost
    fixed_survival: float = 0.0  # sum over both of these
    is_priced: bool = True  # there is a sequence whose nodes have a price

    @property
    def num_fixed(self) -> int:
        return self.num_admitted + self.num_unpriced


@dataclass(frozen=True)
class Economy:
    """Everything learnt so far; see the module."""

    profile: Profile
    correction: CostCorrection
    long_run: LongRun = LongRun()
    switch: DraftSwitch = DraftSwitch()
    shift: float = 0.0  # of the log-odds of every edge
    theta: float | None = None  # price of the last turn
    predicted_ms: float = 0.0  # verify time of the last turn
    num_expected: int = 0  # nodes of the last turn, if all of them were priced ...
    expected: float = 0.0  # ... and how many of them should be accepted

    @staticmethod
    def of_profile(profile: Profile) -> "Economy":
        """Nothing learnt yet."""
        return Economy(
            profile, CostCorrection(draft_ms=profile.draft_ms, other_ms=profile.overhead_ms)
        )

    def observed(self, turn: MeasuredTurn) -> "Economy":
        """Correct times by any turn, acceptance by one that verified just the last forest."""
        if turn.num_sequences <= 0:
            return self
        num_rows = turn.num_sequences + turn.num_drafted
        times = TurnTimes(
            verify_ms=turn.verify_ms,
            draft_ms=turn.draft_ms,
            other_ms=turn.turn_ms - turn.verify_ms - turn.draft_ms,
            predicted_ms=self._cost_model.predict_one_ms(num_rows, turn.num_sequences),
            num_sequences=turn.num_sequences,
        )
        shift = self.shift
        if turn.num_drafted == self.num_expected > 0:
            shift = corrected_shift(shift, turn.num_accepted, self.expected)
        return replace(self, correction=self.correction.after(times), shift=shift)

    def entry_price(self, num_running: int) -> float:
        """What a node must survive by whose price has to be known before it is drawn."""
        if self.theta is not None:
            return self.theta
        costs_ms = self._costs_ms(num_running, 0, 0)
        return best_at(np.zeros(0), num_running, costs_ms, num_running / costs_ms[0]).theta

    def settled(self, candidates: Candidates, load: TurnLoad) -> tuple[Forest, "Economy"]:
        """The best forest of this turn. Its `num_nodes` counts candidates, in their order."""
        running, survivals = load.num_running, candidates.survivals
        tokens = running + candidates.fixed_survival
        num_fixed = load.num_prompt_rows + candidates.num_fixed
        costs_ms = self._costs_ms(running, num_fixed, len(survivals))
        prices_ms = costs_with_blocks(costs_ms, running, load.num_free_blocks)
        goodput = self._goodput(candidates, running)
        weight = time_weight(running, load.num_queued)
        forest = best_at(survivals, tokens, prices_ms, goodput * weight)
        cost_ms = float(costs_ms[forest.num_nodes])
        num_priced = forest.num_nodes + candidates.num_admitted
        settled = replace(
            self,
            theta=forest.theta,
            predicted_ms=cost_ms - self.correction.beside_ms,
            num_expected=0 if candidates.num_unpriced else num_priced,
            expected=forest.expected_tokens - running,
        )
        if candidates.is_priced and not load.num_prompt_rows:
            settled = settled._after_round(forest.expected_tokens, cost_ms, running)
        return forest, settled

    def _goodput(self, candidates: Candidates, running: int) -> float:
        """Of the long run, prompts aside; before there is one, of the best forest of this turn."""
        if self.long_run.num_rounds:
            return self.plain_goodput(running) * self.long_run.gain
        survivals, tokens = candidates.survivals, running + candidates.fixed_survival
        costs_ms = self._costs_ms(running, candidates.num_fixed, len(survivals))
        return best_ratio(survivals, tokens, costs_ms).goodput

    @property
    def is_steady(self) -> bool:
        """Drafting pays, and rounds enough say so: one turn more will hardly move a price."""
        return self.switch.is_on and self.long_run.is_sure

    def price_list(self, load: TurnLoad, num_nodes: int) -> PriceList:
        """Prices of turns with at most so many nodes and with sequences that only decode.

        Once `settled`.
        """
        running = load.num_running
        return PriceList(
            self._costs_ms(running, 0, num_nodes),
            self.plain_goodput(running) * self.long_run.gain,
            self.entry_price(running),
            self.shift,
            self.correction.beside_ms,
        )

    def next_draft(self, num_running: int) -> int:
        """Turns until drafting is worth its cost; 1 = the coming turn."""
        turn_ms = num_running / self.plain_goodput(num_running)
        return self.switch.next_draft(self.correction.draft_ms, turn_ms)

    def plain_goodput(self, num_sequences: int) -> float:
        """Tokens a millisecond without speculation."""
        verify_ms = self._cost_model.predict_one_ms(num_sequences, num_sequences)
        step_ms = self.correction.step.corrected_ms(verify_ms, num_sequences)
        return num_sequences / (step_ms + self.correction.other_ms)

    def _after_round(self, tokens: float, cost_ms: float, running: int) -> "Economy":
        """What a turn with priced nodes teaches about the gain of drafting."""
        plain = self.plain_goodput(running)
        if self.switch.is_on:
            long_run = self.long_run.after(tokens / running, cost_ms * plain / running, running)
            return replace(self, long_run=long_run, switch=self.switch.after(long_run))
        switch = self.switch.after_trial(tokens / (cost_ms * plain))
        return replace(self, switch=switch, long_run=LongRun() if switch.is_on else self.long_run)

    def _costs_ms(self, running: int, num_fixed: int, num_candidates: int) -> np.ndarray:
        """T of the turn with 0, 1, ... candidates, and beyond them for the slope."""
        rows = running + num_fixed + np.arange(num_candidates + 1 + _COSTS_BEYOND)
        verify_ms = self._cost_model.predict_ms(rows, running)
        return self.correction.step.corrected_ms(verify_ms, running) + self.correction.beside_ms

    @property
    def _cost_model(self) -> CostModel:
        return self.profile.cost_model
