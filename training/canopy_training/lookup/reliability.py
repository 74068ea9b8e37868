"""How far predicted acceptance holds: by source of the candidate and by depth."""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import compress, product
from pathlib import Path

import numpy as np

from canopy_kernels.ngram.continuations import FEATURES, GRAM_FEATURES, MATCH_FEATURES

_NUM_BINS = 15
_ALL = "all"


@dataclass(frozen=True)
class Check:
    """Predictions for edges that the fit has not seen."""

    features: np.ndarray  # float64 [e, NUM_FEATURES]
    depths: np.ndarray  # int64 [e]
    probs: np.ndarray  # float64 [e]
    accepted: np.ndarray  # bool [e]

    def parts(self) -> Iterator[tuple[str, np.ndarray]]:
        """(name, which edges), none empty: all, by the sources that know them, by depth."""
        known = {
            "sequence": self.features[:, MATCH_FEATURES].any(axis=1),
            "store": self.features[:, GRAM_FEATURES].any(axis=1),
            "drafter": self.features[:, FEATURES.index("drafted")] > 0.0,
        }
        yield _ALL, np.ones(len(self.probs), bool)
        columns = np.stack(list(known.values()), axis=1)
        for wanted in product((True, False), repeat=len(known)):
            chosen = (columns == wanted).all(axis=1)
            if chosen.any():
                yield " + ".join(compress(known, wanted)), chosen
        for depth in np.unique(self.depths).tolist():
            yield f"depth {depth}", self.depths == depth


def calibration_error(probs: np.ndarray, accepted: np.ndarray) -> float:
    """Expected calibration error over bins of equal count."""
    gaps = [count * abs(mean - rate) for mean, rate, count in bins(probs, accepted)]
    return float(sum(gaps) / max(len(probs), 1))


def bins(probs: np.ndarray, accepted: np.ndarray) -> list[tuple[float, float, int]]:
    """(mean prediction, rate, count) of bins of equal count, by rising prediction."""
    order = np.argsort(probs, kind="stable")
    parts = [part for part in np.array_split(order, _NUM_BINS) if len(part)]
    return [(float(probs[p].mean()), float(accepted[p].mean()), len(p)) for p in parts]


def reliability_table(check: Check) -> str:
    """A Markdown table."""
    lines = ["| edges | number | predicted | accepted | ECE |", "| --- | --- | --- | --- | --- |"]
    for name, chosen in check.parts():
        probs, accepted = check.probs[chosen], check.accepted[chosen]
        error = calibration_error(probs, accepted)
        lines.append(
            f"| {name} | {len(probs)} | {probs.mean():.4f} | {accepted.mean():.4f} | {error:.4f} |"
        )
    return "\n".join(lines)


def write_plot(check: Check, path: Path) -> None:
    """Rate against prediction, by source. Raises ImportError, see extras."""
    from matplotlib.backends.backend_svg import FigureCanvasSVG
    from matplotlib.figure import Figure

    figure = Figure(figsize=(5.0, 5.0), layout="constrained")
    FigureCanvasSVG(figure)
    axes = figure.add_subplot()
    axes.plot([0, 1], [0, 1], color="0.8")
    for name, chosen in check.parts():
        if not name.startswith("depth"):
            points = bins(check.probs[chosen], check.accepted[chosen])
            axes.plot([p for p, _, _ in points], [r for _, r, _ in points], "o-", ms=3, label=name)
    axes.set(xlabel="predicted acceptance", ylabel="accepted")
    axes.legend()
    figure.savefig(path)
