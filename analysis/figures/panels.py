"""Drawing of one panel: lines, bars of cells or over bins, a trend, a coloured surface, or speedups of a roofline."""

import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import matplotlib as mpl
import numpy as np
import pandas as pd
from matplotlib.axes import Axes

from redraft.analysis.figures.figure_parts import (
    LINES,
    NOT_RUN,
    PAPER_COLOUR,
    bar_hue,
    has_gaps,
    panel_view,
    smoothed,
    whole_ticks,
)
from redraft.analysis.figures.roofline_panel import draw_speedups
from redraft.analysis.figures.trend_points import EXTENDED, FITTED
from redraft.analysis.figures.view import View, cut_points
from redraft.config import Figure, Panel

TEXT = 9
"""Size of the smallest text, in points; 12 pixels in a page."""
mpl.rcParams.update({"axes.labelsize": TEXT, "legend.fontsize": TEXT, "legend.frameon": False})
mpl.rcParams["svg.hashsalt"] = "redraft"
mpl.rcParams["svg.fonttype"] = "none"  # letters stay text, which is smaller than their outlines and can be searched
MUTED = "#626b7a"
TREND_COLOUR = "#0072b2"
TREND_TICKS = 0.1
"""Smallest distance between two numbers of a trend's axis, as a share of the axis."""
TREND_MARGIN = 1.15
"""Factor by which a trend's axis continues beyond its outermost coordinates."""
PAPER_MARK: dict[str, Any] = {
    "marker": "D",
    "linestyle": "none",
    "markersize": 6,
    "markerfacecolor": "white",
    "markeredgewidth": 1.4,
}
"""The paper's points, and points at the paper's coordinate: open diamonds."""
CELL_MARK: dict[str, Any] = {"marker": "o", "linestyle": "none", "markersize": 5}
REUSE_MARK: dict[str, Any] = {"marker": "^", "linestyle": "none", "markersize": 8}
"""The first step with drafts: a filled triangle."""
CUT_MARK: dict[str, dict[str, Any]] = {
    "low": {"marker": r"$\downarrow$", "linestyle": "none", "markersize": 9, "markeredgewidth": 0.3},
    "high": {"marker": r"$\uparrow$", "linestyle": "none", "markersize": 9, "markeredgewidth": 0.3},
}
"""An interval that continues beyond the axis: an arrow at the end of the axis."""
DENSE_LINE_POINTS = 40
"""Number of points of a line from which dots would touch each other."""
LETTER_WIDTH_INCHES = 0.075
"""Width of a letter of the smallest text, in inches."""

Colours = Mapping[str, str]
"""Label to a colour."""


def _lines(axis: Axes, figure: Figure, panel: Panel, data: pd.DataFrame, colours: Colours) -> None:
    """Draw means as thin lines and intervals as bands; a step in which the quantity is null is a gap.

    A band is cut at the end of the axis (`redraft.analysis.figures.view`); an arrow marks the cut.
    """
    shown = panel_view(figure, panel, data)
    for label in panel.names:
        line = data[data["label"] == label].set_index("x").sort_index()
        if line.empty:
            continue
        colour = colours[label]
        if has_gaps(figure, panel):
            # Rows of NaN break the line where a step has no value.
            line = line.reindex(range(int(line.index[0]), int(line.index[-1]) + 1))
        known = line["reproduced"].notna()
        alone = ~(known.shift(1, fill_value=False) | known.shift(-1, fill_value=False))
        dots = list(
            np.flatnonzero(known & (alone | (len(line) < DENSE_LINE_POINTS)))
        )  # a long line shows only isolated points as dots
        axis.plot(line.index, line["reproduced"], color=colour, linewidth=1, marker=".", markersize=2.5, markevery=dots)
        if panel.smoothing is not None:
            # Over the points alone, as in pages: steps without a value would count as time and repeat the last average.
            smooth = smoothed(line.loc[known, "reproduced"], panel.smoothing).reindex(line.index)
            axis.plot(line.index, smooth, color=colour, linewidth=2.2, alpha=0.7)
        ends = line[["low", "high"]].clip(*shown)
        axis.fill_between(line.index, ends["low"], ends["high"], color=colour, alpha=0.15, linewidth=0)
        for index, end in cut_points(line, shown):
            axis.plot(line.index[index], getattr(shown, end), color=colour, **CUT_MARK[end])
        axis.plot(line.index, line["reported"], markeredgecolor=colour, zorder=4, **PAPER_MARK)
        marked = line[line["first_reuse"] == True]  # noqa: E712 - gaps are neither true nor false
        axis.plot(marked.index, marked["reproduced"], color=colour, **REUSE_MARK)
    if figure.axis(panel) in ("step", "epoch"):
        axis.set_xticks(whole_ticks(int(data["x"].min()), int(data["x"].max())))
    elif figure.axis(panel) == "score":
        axis.set(xlim=(0, 100), xticks=range(0, 101, 20))


def _bars(axis: Axes, figure: Figure, panel: Panel, data: pd.DataFrame, _: Colours) -> None:
    """Draw means with intervals as bars; the paper's value is a diamond right of the middle of its bar.

    Names below the bars are rotated if the widest of them would touch the next one.
    """
    bars, shown = data.set_index("cell"), panel_view(figure, panel, data)
    for position, cell in enumerate(panel.cells):
        if cell not in bars.index:
            axis.text(
                position,
                0.02,
                NOT_RUN,
                transform=axis.get_xaxis_transform(),
                rotation=90,
                ha="center",
                va="bottom",
                fontsize=TEXT,
                color=MUTED,
            )
            continue
        bar = bars.loc[cell]
        mean, error = bar["reproduced"], None
        if not math.isnan(bar["low"]):
            low, high = np.clip([bar["low"], bar["high"]], *shown)
            # Matplotlib wants distances from the mean, and draws no arrows for ends that are cut.
            error = [[mean - low], [high - mean]]
            _arrows(axis, [position], [bar["low"]], [bar["high"]], shown)
        axis.bar(
            position,
            mean,
            width=0.65,
            color=bar_hue(figure, cell).light,
            yerr=error,
            error_kw={"linewidth": 1, "capsize": 3},
        )
        axis.plot(position + 0.22, bar["reported"], markeredgecolor=PAPER_COLOUR, **PAPER_MARK)
    axis.set_xlim(-0.6, len(panel.cells) - 0.4)
    labels = [panel.label(cell).replace(" + ", "\n+ ") for cell in panel.cells]
    axis.set_xticks(range(len(labels)), labels)
    drawing, grid = axis.figure, axis.get_gridspec()
    # Before the layout is known: four fifths of a panel's share of the drawing are its axis.
    width = 0.8 * drawing.bbox.width / drawing.dpi / (grid.ncols if grid else 1) / len(labels)
    if LETTER_WIDTH_INCHES * max(len(line) for label in labels for line in label.split("\n")) > width:
        axis.tick_params(axis="x", labelrotation=30)
        for label in axis.get_xticklabels():
            label.set(ha="right", rotation_mode="anchor")


def _arrows(axis: Axes, x: Iterable[float], lows: Iterable[float], highs: Iterable[float], shown: View) -> None:
    """Draw an arrow at each end of a whisker that continues beyond the axis."""
    for position, low, high in zip(x, lows, highs, strict=True):
        if low < shown.low:
            axis.plot(position, shown.low, color="black", **CUT_MARK["low"])
        if high > shown.high:
            axis.plot(position, shown.high, color="black", **CUT_MARK["high"])


def _bins(axis: Axes, figure: Figure, panel: Panel, data: pd.DataFrame, colours: Colours) -> None:
    """Draw means over bins with intervals, the bars of cells side by side; the paper's value is a diamond."""
    run, shown = [cell for cell in panel.cells if cell in set(data["cell"])], panel_view(figure, panel, data)
    for i, cell in enumerate(run):
        bins = data[data["cell"] == cell]
        width = (bins["upper"] - bins["x"]) * 0.9 / len(run)
        left = bins["x"] + (bins["upper"] - bins["x"]) * 0.05 + i * width
        ends = bins[["low", "high"]].clip(*shown)
        error = np.array([bins["reproduced"] - ends["low"], ends["high"] - bins["reproduced"]])
        axis.bar(
            left,
            bins["reproduced"],
            width=width,
            align="edge",
            color=colours[panel.label(cell)],
            yerr=error,
            error_kw={"linewidth": 1, "capsize": 2},
        )
        _arrows(axis, left + width / 2, bins["low"], bins["high"], shown)
        axis.plot(left + width / 2, bins["reported"], markeredgecolor=PAPER_COLOUR, **PAPER_MARK)
    edges = panel.bins[:1]
    for edge in panel.bins[1:]:
        if edge - edges[-1] >= 0.0999 * (panel.bins[-1] - panel.bins[0]):  # closer ones would overlap
            edges.append(edge)
    axis.set_xticks(edges)
    axis.set_xlabel(panel.by.replace("_", " "))


def _trend(axis: Axes, _: Figure, panel: Panel, data: pd.DataFrame, __: Colours) -> None:
    """Draw differences with intervals, the fitted line with its band, and an open diamond where it is extended to.

    The line is dashed beyond the cells.
    """
    cells, line = data[data["cell"] != ""], data[data["quantity"] == FITTED].sort_values("x")
    extended = data[data["quantity"] == EXTENDED]
    axis.set_xscale("log")
    axis.axhline(0, color=MUTED, linewidth=0.8)
    within = line[line["x"].between(cells["x"].min(), cells["x"].max())]
    axis.plot(line["x"], line["reproduced"], color=TREND_COLOUR, linewidth=1.2, linestyle="--")
    axis.plot(within["x"], within["reproduced"], color=TREND_COLOUR, linewidth=1.2)
    axis.fill_between(line["x"], line["low"], line["high"], color=TREND_COLOUR, alpha=0.15, linewidth=0)
    for points, colour, mark in ((cells, "black", CELL_MARK), (extended, TREND_COLOUR, PAPER_MARK)):
        y = points["reproduced"]
        ends = [y - points["low"], points["high"] - y]
        axis.errorbar(points["x"], y, ends, fmt="none", ecolor=colour, elinewidth=1, capsize=3)
        axis.plot(points["x"], y, color=colour, **mark)
    ticks = sorted({*cells["x"], *extended["x"]})
    # A single coordinate has no range of its own, and the line at 0 would give the axis one that it is not in.
    axis.set_xlim(ticks[0] / TREND_MARGIN, ticks[-1] * TREND_MARGIN)
    # Numbers of coordinates that are close to another one would lie over it; that of the extension is always there.
    apart = TREND_TICKS * math.log(ticks[-1] / ticks[0])
    shown = list(extended["x"])
    for x in ticks:
        if all(abs(math.log(x / other)) >= apart and x != other for other in shown):
            shown.append(x)
    axis.set_xticks(shown, [f"{x:,.3g}" if x < 1000 else f"{x:,.0f}" for x in shown], rotation=30, ha="right")
    axis.minorticks_off()
    axis.set_xlabel(panel.trend.title if panel.trend else "")


def _surface(axis: Axes, _: Figure, panel: Panel, data: pd.DataFrame, __: Colours) -> None:
    """Draw a heat map with numbers; the axes list the points' coordinates in order."""
    grid = data.pivot_table(index="y", columns="x", values="reproduced", aggfunc="mean")
    image = axis.imshow(np.ma.masked_invalid(grid), origin="lower", aspect="auto", cmap="viridis")
    low, high = image.get_clim()
    for (row, column), value in np.ndenumerate(grid.to_numpy()):
        if not math.isnan(value):
            # Viridis is dark at its lower end.
            ink = "white" if value < low + 0.6 * (high - low) else "black"
            axis.text(column, row, f"{value:.3g}", ha="center", va="center", fontsize=TEXT, color=ink)
    axis.set_xticks(range(len(grid.columns)), [f"{x:g}" for x in grid.columns])
    axis.set_yticks(range(len(grid.index)), [f"{y:g}" for y in grid.index])
    names = [panel.published.x, panel.published.y] if panel.published else panel.axes
    axis.set(xlabel=names[0], ylabel=names[1])
    axis.figure.colorbar(image, ax=axis).ax.tick_params(labelsize=TEXT)


DRAW_BY_AXIS: dict[str, Callable[[Axes, Figure, Panel, pd.DataFrame, Colours], None]] = {
    **dict.fromkeys(LINES, _lines),
    "cell": _bars,
    "bins": _bins,
    "trend": _trend,
    "surface": _surface,
    "roofline": lambda axis, _, __, data, ___: draw_speedups(axis, data),
}
"""Horizontal axis of a panel to the function that draws it."""
