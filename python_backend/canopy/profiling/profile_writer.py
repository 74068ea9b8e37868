"""A measured profile as a file, and as a picture."""

import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from canopy.costs.profile_file import save_profile
from canopy.profiling.measurement import Measurement

_MOST_BYTES = 1 << 18  # of a profile
_SPREAD = (25.0, 50.0, 75.0)


def require_writable(path: Path) -> None:
    """Raises OSError where a profile could not be written: better before measuring than after."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryFile(dir=path.parent) as probe:
        probe.write(bytes(_MOST_BYTES))


def write_profile(measurement: Measurement, path: Path) -> None:
    """The profile, with the quartiles of every measured step time beside it; all or nothing."""
    steps = measurement.steps
    quartiles = {f"p{percentile:g}": _plain(steps.table(percentile)) for percentile in _SPREAD}
    save_profile(measurement.profile.to_json() | {"measured_ms": quartiles}, path)


def _plain(table: list[list[float]]) -> list[list[float | None]]:
    """JSON knows no NaN."""
    return [[None if np.isnan(value) else round(value, 4) for value in row] for row in table]


def write_plot(measurement: Measurement, path: Path) -> None:
    """Step time by tokens: quartiles as measured, and the fit. Raises ImportError, see extras."""
    from matplotlib.backends.backend_svg import FigureCanvasSVG
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7.0, 4.5), layout="constrained")
    FigureCanvasSVG(figure)
    _draw(figure.add_subplot(), measurement)
    figure.savefig(path)


def _draw(axes: Any, measurement: Measurement) -> None:
    steps, model = measurement.steps, measurement.profile.cost_model
    low, middle, high = (np.array(steps.table(percentile)) for percentile in _SPREAD)
    tokens = np.array(steps.grid.tokens)
    for row, num_sequences in enumerate(steps.grid.sequences):
        known = np.isfinite(middle[row])
        spread = [(middle - low)[row][known], (high - middle)[row][known]]
        points = axes.errorbar(tokens[known], middle[row][known], yerr=spread, fmt="o", ms=3)
        line = np.arange(num_sequences, tokens[known].max() + 1)
        axes.plot(
            line,
            model.predict_ms(line, num_sequences),
            color=points[0].get_color(),
            label=f"{num_sequences} sequences",
        )
    axes.set(xscale="log", xlabel="tokens verified", ylabel="step time, ms")
    axes.legend()
