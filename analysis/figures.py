"""A regenerated figure: its data as CSV, and a drawing of the same data."""

from pathlib import Path

import matplotlib as mpl
import pandas as pd

mpl.use("Agg")
mpl.rcParams["svg.hashsalt"] = "redraft"
from matplotlib import pyplot as plt  # noqa: E402 - after the backend is chosen
from matplotlib.axes import Axes  # noqa: E402
from matplotlib.ticker import MaxNLocator  # noqa: E402

from analysis.collect import Runs  # noqa: E402
from analysis.quantities import over_time  # noqa: E402
from analysis.statistics import estimate  # noqa: E402
from redraft.config import Figure, Panel  # noqa: E402
from redraft.files import atomic  # noqa: E402

COLUMNS = [
    *("panel", "cell", "x", "reproduced", "low", "high", "n_seeds", "reported", "deviation", "seeds", "manifests"),
]


def figure_data(figure: Figure, runs: Runs, paper_scale: bool) -> pd.DataFrame:
    """All points of a figure, a line each; a panel's cells without runs have no points.

    Papers print few numbers of a figure, so `reported` is mostly NaN; off the paper's scale it is so everywhere.
    """
    lines = [line for panel in figure.panels for cell in panel.cells for line in _line(figure, panel, cell, runs)]
    data = pd.DataFrame(lines, columns=COLUMNS)
    if not paper_scale:
        data["reported"] = float("nan")
    data["deviation"] = data["reproduced"] - data["reported"]
    return data


def _line(figure: Figure, panel: Panel, cell: str, runs: Runs) -> list[dict]:
    """The points of one cell in one panel."""
    table = over_time(runs, panel.quantity, cell, figure.x)
    ends = {"first": 0, "last": len(table) - 1}
    reported = {ends[end]: value for end, value in panel.reported.items()}
    points = []
    for i, (x, values) in enumerate(table.iterrows()):
        found = estimate({int(seed): float(value) for seed, value in values.items()})
        point = {"panel": panel.quantity, "cell": cell, "x": int(x), "reproduced": found.mean}
        point |= {"low": found.shown.low, "high": found.shown.high, "n_seeds": len(found.seeds)}
        point |= {"reported": reported.get(i, float("nan")), "seeds": " ".join(map(str, found.seeds))}
        points.append(point | {"manifests": " ".join(runs.manifests(cell, found.seeds))})
    return points


def draw(figure: Figure, data: pd.DataFrame, stem: Path) -> None:
    """Draw the points as `<stem>.png` and `<stem>.svg`."""
    cells = list(dict.fromkeys(cell for panel in figure.panels for cell in panel.cells))
    palette = plt.get_cmap("viridis").resampled(max(len(cells), 2))
    colours = {cell: palette(i) for i, cell in enumerate(cells)}
    fig, axes = plt.subplots(1, len(figure.panels), figsize=(max(4.6 * len(figure.panels), 6), 3.6), squeeze=False)
    for axis, panel in zip(axes[0], figure.panels, strict=True):
        _draw_panel(axis, panel, data[data["panel"] == panel.quantity], figure.x, colours)
    legend = {
        label: handle for axis in axes[0] for handle, label in zip(*axis.get_legend_handles_labels(), strict=True)
    }
    fig.legend(legend.values(), legend, loc="lower center", ncols=min(len(legend), 8) or 1, fontsize=8, frameon=False)
    fig.tight_layout(rect=(0, 0.08, 1, 1))
    for suffix in (".png", ".svg"):
        with atomic(stem.with_suffix(suffix)) as temporary:
            fig.savefig(temporary, format=suffix[1:], dpi=120, metadata={"Date": None} if suffix == ".svg" else None)
    plt.close(fig)


def _draw_panel(axis: Axes, panel: Panel, data: pd.DataFrame, x: str, colours: dict[str, tuple]) -> None:
    for cell in panel.cells:
        line = data[data["cell"] == cell].sort_values("x")
        if line.empty:
            axis.plot([], [], color=colours[cell], linestyle=":", label=f"{cell} (not run)")
            continue
        axis.plot(line["x"] + 1, line["reproduced"], color=colours[cell], marker=".", label=cell)
        axis.fill_between(line["x"] + 1, line["low"], line["high"], color=colours[cell], alpha=0.2, linewidth=0)
        axis.plot(line["x"] + 1, line["reported"], color="grey", marker="x", linestyle="none")
    axis.set_title(panel.title, fontsize=9)
    axis.set_xlabel(x)
    axis.xaxis.set_major_locator(MaxNLocator(integer=True))
    axis.grid(alpha=0.3)
