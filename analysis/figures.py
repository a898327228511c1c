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

COLUMNS = ["panel", "cell", "x", "reproduced", "low", "high", "n_seeds", "seeds"]


def figure_data(figure: Figure, runs: Runs) -> pd.DataFrame:
    """All points of a figure, a line each; a panel's cells without runs have no points."""
    lines = [
        {"panel": panel.quantity, "cell": cell, "x": int(x), **_point(values)}
        for panel in figure.panels
        for cell in panel.cells
        for x, values in over_time(runs, panel.quantity, cell, figure.x).iterrows()
    ]
    return pd.DataFrame(lines, columns=COLUMNS)


def _point(values: pd.Series) -> dict:
    found = estimate({int(seed): float(value) for seed, value in values.items()})  # type: ignore[call-overload]
    return {
        "reproduced": found.mean, "low": found.low, "high": found.high, "n_seeds": len(found.seeds),
        "seeds": " ".join(map(str, found.seeds)),
    }  # fmt: skip


def draw(figure: Figure, data: pd.DataFrame, stem: Path) -> None:
    """Draw the points as `<stem>.png` and `<stem>.svg`."""
    fig, axes = plt.subplots(1, len(figure.panels), figsize=(max(4.6 * len(figure.panels), 6), 3.6), squeeze=False)
    for axis, panel in zip(axes[0], figure.panels, strict=True):
        _draw_panel(axis, panel, data[data["panel"] == panel.quantity], figure.x)
    handles, labels = axes[0][0].get_legend_handles_labels()
    fig.legend(handles, labels, loc="lower center", ncols=min(len(labels), 8) or 1, fontsize=8, frameon=False)
    fig.tight_layout(rect=(0, 0.08, 1, 1))
    for suffix in (".png", ".svg"):
        with atomic(stem.with_suffix(suffix)) as temporary:
            fig.savefig(temporary, format=suffix[1:], dpi=120, metadata={"Date": None} if suffix == ".svg" else None)
    plt.close(fig)


def _draw_panel(axis: Axes, panel: Panel, data: pd.DataFrame, x: str) -> None:
    colours = plt.get_cmap("viridis").resampled(max(len(panel.cells), 2))
    for i, cell in enumerate(panel.cells):
        line = data[data["cell"] == cell].sort_values("x")
        if line.empty:
            axis.plot([], [], color=colours(i), linestyle=":", label=f"{cell} (not run)")
            continue
        axis.plot(line["x"] + 1, line["reproduced"], color=colours(i), marker=".", label=cell)
        axis.fill_between(line["x"] + 1, line["low"], line["high"], color=colours(i), alpha=0.2, linewidth=0)
    for name, value in panel.reported.items():
        axis.axhline(value, color="grey", linestyle="--", linewidth=0.8)
        axis.annotate(f"paper, {name}: {value:g}", (0.02, value), xycoords=("axes fraction", "data"), fontsize=7,
                      color="grey", va="bottom")  # fmt: skip
    axis.set_title(panel.title, fontsize=9)
    axis.set_xlabel(x)
    axis.xaxis.set_major_locator(MaxNLocator(integer=True))
    axis.grid(alpha=0.3)
