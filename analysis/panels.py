"""Drawing of one diagram: lines, bars of cells, bars over bins, or colours over two axes."""

import math
from collections.abc import Callable, Mapping

import matplotlib as mpl
import numpy as np
import pandas as pd

mpl.use("Agg")
mpl.rcParams["svg.hashsalt"] = "redraft"
from matplotlib import pyplot as plt  # noqa: E402 - after the backend is chosen
from matplotlib.axes import Axes  # noqa: E402
from matplotlib.ticker import MaxNLocator  # noqa: E402

from analysis.quantities import ACCURACY, SPENT  # noqa: E402
from redraft.config import Panel  # noqa: E402

DISTINCT = ("#444444", "#0072b2", "#d55e00", "#009e73", "#cc79a7")
"""Colours for a few lines, told apart by colour-blind people too (Okabe and Ito); more lines get a scale."""
GREY = "#9aa5b1"
"""Colour of a baseline's bar."""
NOT_RUN = "not run"
LINES = ("step", "epoch", *SPENT)
BARS = ("cell", "bins")

Colours = Mapping[str, object]
"""Label to a colour."""


def _lines(axis: Axes, panel: Panel, data: pd.DataFrame, colours: Colours, x: str) -> None:
    """Means as thin lines, intervals as bands; where a quantity is null in a step, the line has a gap.

    A logarithmic axis has no place for an interval's end below zero; the band then reaches down to below all means.
    """
    positive = data.loc[data["reproduced"] > 0, "reproduced"]
    logarithmic = panel.log and len(positive) > 0
    floor = positive.min() / 3 if logarithmic else -math.inf
    for label in panel.names:
        line = data[data["label"] == label].set_index("x").sort_index()
        if line.empty:
            continue
        colour = colours[label]
        if x not in SPENT and not panel.curves and not panel.quantity.startswith(ACCURACY):
            line = line.reindex(range(int(line.index[0]), int(line.index[-1]) + 1))
        axis.plot(line.index, line["reproduced"], color=colour, linewidth=1, marker=".", markersize=2.5)
        if panel.smoothing is not None:
            smooth = line["reproduced"].ewm(alpha=1 - panel.smoothing, adjust=False).mean()
            axis.plot(line.index, smooth, color=colour, linewidth=2.2, alpha=0.7)
        low = line["low"].clip(lower=floor)
        axis.fill_between(line.index, low, line["high"], color=colour, alpha=0.15, linewidth=0)
        axis.plot(line.index, line["reported"], color="grey", marker="x", linestyle="none")
        marked = line[line["first_reuse"] == True]  # noqa: E712 - gaps are neither true nor false
        axis.plot(marked.index, marked["reproduced"], color=colour, marker="D", markersize=6, linestyle="none")
    if logarithmic:
        axis.set_yscale("log", nonpositive="mask")
    if not data.empty and x not in SPENT:
        axis.xaxis.set_major_locator(MaxNLocator(integer=True))


def _bars(axis: Axes, panel: Panel, data: pd.DataFrame, colours: Colours, _: str) -> None:
    """Means with intervals; the paper's value, where it applies, is a cross beside the bar's middle."""
    bars = data.set_index("cell")
    for position, cell in enumerate(panel.cells):
        if cell not in bars.index:
            axis.text(position, 0.02, NOT_RUN, transform=axis.get_xaxis_transform(), rotation=90, ha="center",
                      va="bottom", fontsize=8, color="grey")  # fmt: skip
            continue
        bar = bars.loc[cell]
        mean, error = bar["reproduced"], None
        if not math.isnan(bar["low"]):
            error = [[mean - bar["low"]], [bar["high"] - mean]]
        axis.bar(
            position,
            mean,
            width=0.65,
            color=colours[panel.label(cell)],
            yerr=error,
            error_kw={"linewidth": 1, "capsize": 3},
        )
        axis.plot(position + 0.22, bar["reported"], color="#d55e00", marker="x", linestyle="none")
    axis.set_xticks(range(len(panel.cells)), [panel.label(cell).replace(" + ", "\n+ ") for cell in panel.cells])
    axis.set_xlim(-0.6, len(panel.cells) - 0.4)


def _bins(axis: Axes, panel: Panel, data: pd.DataFrame, colours: Colours, _: str) -> None:
    """Means of the bins side by side for the cells, with intervals; a bin without a value has no bar.

    The paper's value, where it applies, is a cross.
    """
    run = [cell for cell in panel.cells if cell in set(data["cell"])]
    for i, cell in enumerate(run):
        bins = data[data["cell"] == cell]
        width = (bins["upper"] - bins["x"]) * 0.9 / len(run)
        left = bins["x"] + (bins["upper"] - bins["x"]) * 0.05 + i * width
        error = np.array([bins["reproduced"] - bins["low"], bins["high"] - bins["reproduced"]])
        axis.bar(left, bins["reproduced"], width=width, align="edge", color=colours[panel.label(cell)],
                 yerr=np.nan_to_num(error), error_kw={"linewidth": 1, "capsize": 2})  # fmt: skip
        axis.plot(left + width / 2, bins["reported"], color="#d55e00", marker="x", linestyle="none")
    if run:
        axis.set_xticks(panel.bins)
    axis.set_xlabel(panel.by, fontsize=8)
    if panel.log and (data["reproduced"] > 0).any():
        axis.set_yscale("log", nonpositive="mask")


def _surface(axis: Axes, panel: Panel, data: pd.DataFrame, _colours: Colours, _: str) -> None:
    """A square a point, its colour the mean and its number beside it; the axes are the points' own values in order."""
    if data.empty:
        return
    grid = data.pivot_table(index="y", columns="x", values="reproduced", aggfunc="mean")
    image = axis.imshow(np.ma.masked_invalid(grid), origin="lower", aspect="auto", cmap="viridis")
    for (row, column), value in np.ndenumerate(grid.to_numpy()):
        if not math.isnan(value):
            axis.text(column, row, f"{value:.3g}", ha="center", va="center", fontsize=6, color="white")
    axis.set_xticks(range(len(grid.columns)), [f"{x:g}" for x in grid.columns])
    axis.set_yticks(range(len(grid.index)), [f"{y:g}" for y in grid.index])
    names = [panel.published.x, panel.published.y] if panel.published else panel.axes
    axis.set_xlabel(names[0], fontsize=8)
    axis.set_ylabel(names[1], fontsize=8)
    axis.figure.colorbar(image, ax=axis)


DRAWN: dict[str, Callable[[Axes, Panel, pd.DataFrame, Colours, str], None]] = {
    **dict.fromkeys(LINES, _lines), "cell": _bars, "bins": _bins, "surface": _surface,
}  # fmt: skip
"""Horizontal axis of a figure to the function that draws its diagrams."""

__all__ = ["BARS", "DISTINCT", "DRAWN", "GREY", "LINES", "NOT_RUN", "Colours", "plt"]
