"""Drawing of the speedup that a roofline predicts, with the measured speedups of its sweep."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.collections import PathCollection, QuadMesh
from matplotlib.colors import LogNorm
from matplotlib.figure import Figure as Drawing
from matplotlib.lines import Line2D

from redraft.analysis.figures.roofline_points import BOUNDARY, PREDICTED, on_predicted_side
from redraft.selfspec.roofline import MARGIN

COLOURS = "PuOr"
GAIN, SWITCH, SAME_SIDE, OTHER_SIDE = "black", "#0072b2", "#a0a0a0", "#c1121f"
TICKS = (0.25, 0.33, 0.5, 0.7, 1, 1.4, 2, 3, 4)
"""Ticks of the colour bar."""


def draw_speedups(axis: Axes, points: pd.DataFrame) -> None:
    """Draw `roofline_points.speedups` for one draft length; call `scale_colours` after all panels."""
    predicted = points[points["quantity"] == PREDICTED].pivot_table(index="y", columns="x", values="reproduced")
    batches, lengths = predicted.columns.to_numpy(), predicted.index.to_numpy()
    axis.pcolormesh(batches, lengths, predicted, shading="gouraud", rasterized=True, cmap=COLOURS)
    # Matplotlib warns of a level that the data do not cross.
    if predicted.to_numpy().min() < 1 < predicted.to_numpy().max():
        axis.contour(batches, lengths, predicted, levels=[1.0], colors=GAIN, linewidths=1.2)
    switch = points[points["quantity"] == BOUNDARY]
    axis.plot(switch["x"], switch["y"], color=SWITCH, linewidth=1.6)
    measured = on_predicted_side(points)
    axis.scatter(
        measured["x"],
        measured["y"],
        c=measured["reproduced"],
        cmap=COLOURS,
        s=45,
        zorder=3,
        edgecolors=np.where(measured["agrees"], SAME_SIDE, OTHER_SIDE),
        linewidths=np.where(measured["agrees"], 0.8, 2.0).tolist(),
    )
    axis.set(
        xscale="log",
        yscale="log",
        xlim=batches[[0, -1]],
        ylim=lengths[[0, -1]],
        xlabel="batch",
        ylabel="length (tokens)",
    )
    axis.set_xticks(*_ticks(measured["x"]))
    axis.set_yticks(*_ticks(measured["y"]))
    axis.minorticks_off()


def scale_colours(drawing: Drawing, axes: Sequence[Axes], text: float) -> None:
    """Give all panels one colour scale, symmetric around a speedup of 1, and a colour bar."""
    coloured = [each for axis in axes for each in axis.collections if isinstance(each, QuadMesh | PathCollection)]
    values = np.concatenate([np.asarray(each.get_array()).ravel() for each in coloured])
    # Half as fast is as far from 1 as twice as fast.
    most = float(np.exp(np.abs(np.log(values)).max()))
    scale = LogNorm(1 / most, most)
    for each in coloured:
        each.set_norm(scale)
    bar = drawing.colorbar(coloured[0], ax=axes, shrink=0.8)
    bar.set_label("speedup")
    bar.ax.yaxis.set_label_position("left")  # on the right it would seem to belong to the next diagram
    ticks = [tick for tick in TICKS if 1 / most <= tick <= most]
    bar.set_ticks(ticks, labels=[f"{tick:g}" for tick in ticks], minor=False)
    bar.ax.tick_params(labelsize=text)
    bar.minorticks_off()


def legend() -> list[Line2D]:
    """Legend entries of everything but the predicted speedup, which the background colour shows."""
    circle: dict[str, Any] = {"marker": "o", "linestyle": "none", "markersize": 7, "markerfacecolor": "white"}
    return [
        Line2D([], [], color=GAIN, label="predicted: no gain"),
        Line2D([], [], color=SWITCH, label=f"{BOUNDARY}: {1 + MARGIN:g} predicted"),
        Line2D([], [], markeredgecolor=SAME_SIDE, label="measured", **circle),
        Line2D([], [], markeredgecolor=OTHER_SIDE, markeredgewidth=2, label="measured, other side of 1", **circle),
    ]


def _ticks(values: pd.Series) -> tuple[list[float], list[str]]:
    """Ticks at measured values that are far enough apart on a logarithmic axis, and their labels."""
    chosen: list[float] = []
    for value in sorted(set(values)):
        if not chosen or value >= 1.8 * chosen[-1]:
            chosen.append(value)
    return chosen, [f"{value:g}" for value in chosen]
