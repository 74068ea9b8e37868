"""Line plots of tables, as SVG; needs the extra `plots`."""

from collections.abc import Sequence
from pathlib import Path

from bench.benchmark import Record


def plot_lines(
    records: Sequence[Record], path: Path, x: str, y: str, by: str, is_log: bool = False
) -> None:
    """One line for each value of the column `by`. Raises ImportError without matplotlib."""
    from matplotlib.backends.backend_svg import FigureCanvasSVG
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7.0, 4.5), layout="constrained")
    FigureCanvasSVG(figure)
    axes = figure.add_subplot()
    for name in dict.fromkeys(record[by] for record in records):
        own = [record for record in records if record[by] == name]
        axes.plot([r[x] for r in own], [r[y] for r in own], marker="o", ms=3, label=str(name))
    axes.set(xlabel=x, ylabel=y, xscale="log" if is_log else "linear")
    axes.grid(alpha=0.3)
    axes.legend()
    figure.savefig(path)
