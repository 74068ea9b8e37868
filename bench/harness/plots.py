"""Line plots of tables, as SVG; needs the extra `plots`."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from bench.harness.benchmark import Record


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


@dataclass(frozen=True)
class Panel:
    """Columns `ys` over the column `value`, a color for each `arm`; a second column is dashed."""

    records: list[Record]
    x_label: str
    y_label: str
    ys: tuple[str, ...]


def plot_panels(panels: Sequence[Panel], path: Path) -> None:
    """Three panels a row. Raises ImportError without matplotlib."""
    from matplotlib.backends.backend_svg import FigureCanvasSVG
    from matplotlib.figure import Figure

    num_rows = -(-len(panels) // 3)
    figure = Figure(figsize=(13.0, 4.0 * num_rows), layout="constrained")
    FigureCanvasSVG(figure)
    for number, panel in enumerate(panels, 1):
        axes = figure.add_subplot(num_rows, 3, number)
        for color, arm in enumerate(sorted({record["arm"] for record in panel.records})):
            own = [record for record in panel.records if record["arm"] == arm]
            for style, y in zip(("-", "--"), panel.ys, strict=False):
                label = arm if len(panel.ys) == 1 else f"{arm} {y.rsplit('_', 1)[-1]}"
                values = [record[y] for record in own]
                x = [record["value"] for record in own]
                axes.plot(x, values, style, color=f"C{color}", marker="o", ms=3, label=label)
        top = max(record[y] for record in panel.records for y in panel.ys)
        axes.set(xlabel=panel.x_label, ylabel=panel.y_label, ylim=(0, 1.1 * top))
        axes.grid(alpha=0.3)
        axes.legend(fontsize=8)
    figure.savefig(path)
