"""The node budget of a step, and what the tree builder learns from step to step.

A `BudgetController` is an immutable value: `updated` returns the controller after a measured step,
`choose` the budget of a step and the controller after it. It holds nothing about a sequence.
"""

from dataclasses import dataclass, replace

import numpy as np

from canopy.costs.cost_model import CostCorrection, CostModel, StepTimesMs
from canopy.costs.profile import Profile
from canopy.tree.survival import updated_correction
from canopy.tree_builder.goodput import (
    CostCurve,
    DraftGate,
    NodeBudget,
    SpeedupAverage,
    best_at,
    best_ratio,
    costs_with_blocks,
    time_weight,
)

_COSTS_BEYOND = 16  # tokens beyond the last candidate, for the slope there


@dataclass(frozen=True)
class MeasuredStep:
    """Measurements of the previous step; without sequences they are ignored."""

    num_sequences: int = 0
    num_drafted: int = 0
    num_accepted: int = 0
    verify_ms: float = 0.0
    draft_ms: float = 0.0
    step_ms: float = 0.0


@dataclass(frozen=True)
class StepLoad:
    """The load of a step."""

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
class CandidateNodes:
    """The nodes of a step among which the budget is chosen."""

    survivals: np.ndarray  # float64 [n], falling: nodes that have to be worth their price
    num_admitted: int = 0  # nodes let in at the price of the last step
    num_unpriced: int = 0  # nodes that are verified whatever they cost
    fixed_survival: float = 0.0  # sum over both of these
    is_priced: bool = True  # there is a sequence whose nodes have a price

    @property
    def num_fixed(self) -> int:
        return self.num_admitted + self.num_unpriced


@dataclass(frozen=True)
class BudgetController:
    """Profile, corrections and running averages; see the module."""

    profile: Profile
    correction: CostCorrection
    speedup_average: SpeedupAverage = SpeedupAverage()
    gate: DraftGate = DraftGate()
    log_odds_correction: float = 0.0  # of the log-odds of every edge
    price: float | None = None  # price of the last step
    predicted_ms: float = 0.0  # verify time of the last step
    num_expected: int = 0  # nodes of the last step, if all of them were priced ...
    expected: float = 0.0  # ... and how many of them should be accepted

    @staticmethod
    def of_profile(profile: Profile) -> "BudgetController":
        """The controller before the first step."""
        return BudgetController(
            profile, CostCorrection(draft_ms=profile.draft_ms, overhead_ms=profile.overhead_ms)
        )

    def updated(self, step: MeasuredStep) -> "BudgetController":
        """Correct times by any step, acceptance by one that verified just the last forest."""
        if step.num_sequences <= 0:
            return self
        num_rows = step.num_sequences + step.num_drafted
        times = StepTimesMs(
            verify_ms=step.verify_ms,
            draft_ms=step.draft_ms,
            overhead_ms=step.step_ms - step.verify_ms - step.draft_ms,
            predicted_ms=self._cost_model.predict_one_ms(num_rows, step.num_sequences),
            num_sequences=step.num_sequences,
        )
        log_odds_correction = self.log_odds_correction
        if step.num_drafted == self.num_expected > 0:
            log_odds_correction = updated_correction(
                log_odds_correction, step.num_accepted, self.expected
            )
        return replace(
            self, correction=self.correction.after(times), log_odds_correction=log_odds_correction
        )

    def entry_price(self, num_running: int) -> float:
        """What a node must survive by whose price has to be known before it is drawn."""
        if self.price is not None:
            return self.price
        costs_ms = self._costs_ms(num_running, 0, 0)
        return best_at(np.zeros(0), num_running, costs_ms, num_running / costs_ms[0]).price

    def choose(
        self, candidates: CandidateNodes, load: StepLoad
    ) -> tuple[NodeBudget, "BudgetController"]:
        """The best forest of this step. Its `num_nodes` counts candidates, in their order."""
        running, survivals = load.num_running, candidates.survivals
        tokens = running + candidates.fixed_survival
        num_fixed = load.num_prompt_rows + candidates.num_fixed
        costs_ms = self._costs_ms(running, num_fixed, len(survivals))
        prices_ms = costs_with_blocks(costs_ms, running, load.num_free_blocks)
        goodput = self._goodput(candidates, running)
        weight = time_weight(running, load.num_queued)
        budget = best_at(survivals, tokens, prices_ms, goodput * weight)
        cost_ms = float(costs_ms[budget.num_nodes])
        num_priced = budget.num_nodes + candidates.num_admitted
        choose = replace(
            self,
            price=budget.price,
            predicted_ms=cost_ms - self.correction.non_verify_ms,
            num_expected=0 if candidates.num_unpriced else num_priced,
            expected=budget.expected_tokens - running,
        )
        if candidates.is_priced and not load.num_prompt_rows:
            choose = choose._after_round(budget.expected_tokens, cost_ms, running)
        return budget, choose

    def _goodput(self, candidates: CandidateNodes, running: int) -> float:
        """Of the long run, prompts aside; before there is one, of the best forest of this step."""
        if self.speedup_average.num_rounds:
            return self.plain_goodput(running) * self.speedup_average.gain
        survivals, tokens = candidates.survivals, running + candidates.fixed_survival
        costs_ms = self._costs_ms(running, candidates.num_fixed, len(survivals))
        return best_ratio(survivals, tokens, costs_ms).goodput

    @property
    def is_converged(self) -> bool:
        """Drafting pays, and rounds enough say so: one step more will hardly move a price."""
        return self.gate.is_on and self.speedup_average.is_converged

    def cost_curve(self, load: StepLoad, num_nodes: int) -> CostCurve:
        """Prices of steps with at most so many nodes and with sequences that only decode.

        Once `choose`.
        """
        running = load.num_running
        return CostCurve(
            self._costs_ms(running, 0, num_nodes),
            self.plain_goodput(running) * self.speedup_average.gain,
            self.entry_price(running),
            self.log_odds_correction,
            self.correction.non_verify_ms,
        )

    def next_draft(self, num_running: int) -> int:
        """Steps until drafting is worth its cost; 1 = the coming step."""
        step_ms = num_running / self.plain_goodput(num_running)
        return self.gate.next_draft(self.correction.draft_ms, step_ms)

    def plain_goodput(self, num_sequences: int) -> float:
        """Tokens a millisecond without speculation."""
        verify_ms = self._cost_model.predict_one_ms(num_sequences, num_sequences)
        step_ms = self.correction.step.corrected_ms(verify_ms, num_sequences)
        return num_sequences / (step_ms + self.correction.overhead_ms)

    def _after_round(self, tokens: float, cost_ms: float, running: int) -> "BudgetController":
        """What a step with priced nodes teaches about the gain of drafting."""
        plain = self.plain_goodput(running)
        if self.gate.is_on:
            speedup_average = self.speedup_average.after(
                tokens / running, cost_ms * plain / running, running
            )
            return replace(
                self, speedup_average=speedup_average, gate=self.gate.after(speedup_average)
            )
        gate = self.gate.after_trial(tokens / (cost_ms * plain))
        return replace(
            self,
            gate=gate,
            speedup_average=SpeedupAverage() if gate.is_on else self.speedup_average,
        )

    def _costs_ms(self, running: int, num_fixed: int, num_candidates: int) -> np.ndarray:
        """T of the step with 0, 1, ... candidates, and beyond them for the slope."""
        rows = running + num_fixed + np.arange(num_candidates + 1 + _COSTS_BEYOND)
        verify_ms = self._cost_model.predict_ms(rows, running)
        return self.correction.step.corrected_ms(verify_ms, running) + self.correction.non_verify_ms

    @property
    def _cost_model(self) -> CostModel:
        return self.profile.cost_model
