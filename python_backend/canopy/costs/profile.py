"""What `canopy profile` measured on one machine for one model: everything that has a price."""

import dataclasses
from dataclasses import dataclass, field
from typing import Any

from canopy.costs.cost_model import DEFAULT_COST_MODEL, CostModel
from canopy.tree.survival import SIBLING_RATES, Calibration

GREEDY, SAMPLED = "greedy", "sampled"  # where a source is more and less reliable
SAMPLED_TEMPERATURE = 0.8  # at which the latter is measured
_HOTTEST = 2.0  # times that temperature, up to which the trend between the two is gone on with
_LEAST_SLOPE = 0.1


@dataclass(frozen=True)
class Profile:
    """The defaults are those of a machine that nobody measured."""

    fingerprint: dict[str, str] = field(default_factory=dict)  # model, dtype, machine, ...
    cost_model: CostModel = DEFAULT_COST_MODEL
    draft_ms: float = 0.0  # of one sequence
    overhead_ms: float = 1.0  # of a step, beside draft and verify
    calibrations: dict[str, Calibration] = field(
        default_factory=dict
    )  # of the source, by GREEDY or SAMPLED
    sibling_rates: tuple[float, ...] = SIBLING_RATES
    is_coarse: bool = False  # of step times only a few kinds were measured, for lack of time

    def __post_init__(self) -> None:
        rates = self.sibling_rates
        if not rates or not all(0.0 < rate < 1.0 for rate in rates):
            raise ValueError("sibling rates are probabilities between 0 and 1")
        if list(rates) != sorted(rates, reverse=True) or sum(rates) > 1.0:
            raise ValueError("sibling rates fall, and one child at most is accepted")
        if not (0.0 <= self.draft_ms < 1e6 and 0.0 <= self.overhead_ms < 1e6):
            raise ValueError("draft_ms and overhead_ms are times")

    def calibration_of(self, temperature: float) -> Calibration:
        """The map of the drafter's scores for text of a temperature; what was not measured is
        believed.

        Its two numbers go linearly with the temperature from those of greedy text through those of
        sampled text: the hotter a text is, the less its scores promise.
        """
        if temperature == 0.0 or SAMPLED not in self.calibrations:
            return self.calibrations.get(GREEDY if temperature == 0.0 else SAMPLED, Calibration())
        sampled = self.calibrations[SAMPLED]
        cold = self.calibrations.get(GREEDY, sampled)
        share = min(temperature / SAMPLED_TEMPERATURE, _HOTTEST)
        slope = cold.slope + share * (sampled.slope - cold.slope)
        intercept = cold.intercept + share * (sampled.intercept - cold.intercept)
        return Calibration(max(slope, _LEAST_SLOPE), intercept)

    def to_json(self) -> dict[str, Any]:
        """Plain values only."""
        return dataclasses.asdict(self)

    @staticmethod
    def from_json(document: Any) -> "Profile":
        """The inverse of `to_json`; further keys are ignored. Raises ValueError."""
        try:
            return Profile(
                fingerprint={str(k): str(v) for k, v in document["fingerprint"].items()},
                cost_model=CostModel.from_json(document["cost_model"]),
                draft_ms=float(document["draft_ms"]),
                overhead_ms=float(document["overhead_ms"]),
                calibrations={
                    str(kind): Calibration(float(c["slope"]), float(c["intercept"]))
                    for kind, c in document["calibrations"].items()
                },
                sibling_rates=tuple(map(float, document["sibling_rates"])),
                is_coarse=bool(document.get("is_coarse", False)),
            )
        except (TypeError, KeyError, AttributeError) as error:
            raise ValueError(f"not a profile: {error!r}") from error
