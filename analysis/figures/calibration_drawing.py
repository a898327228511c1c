"""Drawing of a calibration: predicted and measured speedup for each draft length of its sweep."""

import math
from pathlib import Path

from matplotlib.figure import Figure as Drawing

from redraft.analysis.figures.panels import TEXT
from redraft.analysis.figures.roofline_panel import draw_speedups, legend, scale_colours
from redraft.analysis.figures.roofline_points import agreement_note, speedups
from redraft.files import atomic
from redraft.lab.selfspec.sweep import Sweep
from redraft.selfspec.calibration import Calibration

COLUMNS = 2


def draw_roofline(calibration: Calibration, sweep: Sweep, file: Path) -> None:
    """Write an SVG of speedups over batch and length, with one panel per draft length.

    All drafts are assumed to be accepted whole, as in EfficientRollout's Figure 12.
    """
    drawing = plot_roofline(calibration, sweep)
    with atomic(file) as temporary:
        drawing.savefig(temporary, format="svg", metadata={"Date": None}, dpi=120)


def plot_roofline(calibration: Calibration, sweep: Sweep) -> Drawing:
    """The Matplotlib figure; all panels share a colour scale."""
    gammas = sweep.gammas
    columns = min(len(gammas), COLUMNS)
    rows = math.ceil(len(gammas) / columns)
    drawing = Drawing(figsize=(3.9 * columns + 0.9, 3.0 * rows + 0.5), layout="constrained")
    axes = drawing.subplots(rows, columns, squeeze=False).flat
    for axis, gamma in zip(axes, gammas, strict=False):
        points = speedups(calibration, sweep, gamma)
        draw_speedups(axis, points)
        axis.set_title(f"γ = {gamma}: {agreement_note(points)}", fontsize="medium")
        axis.tick_params(labelsize=TEXT)
    for axis in axes[len(gammas) :]:
        axis.axis("off")
    scale_colours(drawing, list(axes[: len(gammas)]), TEXT)
    drawing.legend(handles=legend(), loc="outside lower center", ncols=columns)
    return drawing
