"""Matplotlib drawing of a whole figure; `redraft.analysis.figures.panels` draws its panels."""

import io
import math
import textwrap
from pathlib import Path

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure as Drawing
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from redraft.analysis.figures.figure_parts import (
    BARS,
    CUT,
    FIRST_REUSE,
    INTERVAL,
    LINES,
    PAPER,
    PAPER_COLOUR,
    axis_label,
    cells_not_run,
    hues,
    is_cut,
    with_data,
)
from redraft.analysis.figures.panels import CUT_MARK, DRAW_BY_AXIS, MUTED, PAPER_MARK, REUSE_MARK, TEXT, Colours
from redraft.analysis.figures.points import AUTHORS_SWEEP
from redraft.analysis.figures.roofline_panel import legend, scale_colours
from redraft.analysis.figures.roofline_points import agreement_note
from redraft.analysis.figures.svg import compact
from redraft.analysis.figures.trend_points import trend_note
from redraft.config import Figure, Panel
from redraft.files import atomic, write_atomically

PANEL_WIDTH, PANEL_HEIGHT = 3.7, 2.8
"""Inches."""
MOST_COLUMNS = 3
"""Panels in a row; with more of them the text would be too small to read after scaling to the width of a page."""
LINE_HEIGHT = 12
"""Height of a line of a note, points."""
LETTERS_PER_INCH = 12
"""Letters of a note or title per inch, for wrapping."""
LEGEND_KEY = 0.65
"""Inches of a legend entry in addition to its letters."""


def draw(figure: Figure, data: pd.DataFrame, stem: Path, stand_in: str = "", panels: list[Panel] | None = None) -> None:
    """Draw a figure with data as `<stem>.png` and `<stem>.svg`.

    Args:
        stand_in: note above the figure; none if empty.
        panels: panels to draw; all panels with data if None.
    """
    drawing = plot(figure, data, panels)
    if stand_in:
        drawing.suptitle(stand_in, fontsize=TEXT, style="italic", color=MUTED)
    with atomic(stem.with_suffix(".png")) as temporary:
        drawing.savefig(temporary, format="png", dpi=120)
    text = io.StringIO()
    # Without date and version, so that the same data give the same file.
    drawing.savefig(text, format="svg", metadata=dict.fromkeys(("Creator", "Date", "Format", "Type")))
    write_atomically(stem.with_suffix(".svg"), compact(text.getvalue()))


def plot(figure: Figure, data: pd.DataFrame, panels: list[Panel] | None = None) -> Drawing:
    """The Matplotlib figure, with one axis per panel with data."""
    panels = with_data(figure, data) if panels is None else panels
    data = data[data["panel"].isin([panel.title for panel in panels])]
    columns = min(figure.columns, len(panels), MOST_COLUMNS)
    rows = math.ceil(len(panels) / columns)
    wide = PANEL_WIDTH if columns > 1 else 1.9 * PANEL_WIDTH
    height = PANEL_HEIGHT * (1 if rows > 1 else 1.3)
    fig = Drawing(figsize=(wide * columns, height * rows + 0.4), layout="constrained")
    axes = fig.subplots(rows, columns, squeeze=False).flat
    colours = {label: hue.light for label, hue in hues(figure).items()}
    for axis, panel in zip(axes, panels, strict=False):
        part, x = data[data["panel"] == panel.title], figure.axis(panel)
        DRAW_BY_AXIS[x](axis, figure, panel, part, colours)
        _head(axis, x, panel, part, int(LETTERS_PER_INCH * wide))
        axis.tick_params(labelsize=TEXT)
        # Without a positive value a logarithmic axis has no range.
        if panel.log and x in (*LINES, "bins") and (part["reproduced"] > 0).any():
            axis.set_yscale("log", nonpositive="mask")
        if x != "roofline":
            axis.grid(alpha=0.25, linewidth=0.6, axis="y" if x in BARS else "both")
        axis.spines[["top", "right"]].set_visible(False)
        if x in LINES:
            axis.set_xlabel(axis_label(figure, panel))
    for axis in axes[len(panels) :]:
        axis.set_visible(False)
    if of_rooflines := [a for a, p in zip(axes, panels, strict=False) if figure.axis(p) == "roofline"]:
        scale_colours(fig, of_rooflines, TEXT)
    if handles := _legend(figure, panels, data, colours):
        widest = max(len(str(handle.get_label())) for handle in handles) / LETTERS_PER_INCH + LEGEND_KEY
        in_a_row = max(1, min(len(handles), int(wide * columns / widest)))
        fig.legend(handles=handles, loc="outside lower center", ncols=in_a_row)
    return fig


def _head(axis: Axes, x: str, panel: Panel, points: pd.DataFrame, letters: int) -> None:
    """Write the title, and below it a note about cells that were not run or about published data.

    A bar panel has no such note: it marks cells that were not run at their positions.
    """
    note = "" if x == "cell" else cells_not_run(panel, points)
    if x == "roofline":
        note = f"{AUTHORS_SWEEP}, no run of ours: {agreement_note(points)}"
    if panel.trend:
        note = "; ".join(filter(None, (trend_note(panel, points), note)))
    lines = textwrap.wrap(note, letters)
    axis.set_title(textwrap.fill(panel.title, letters), fontsize=TEXT + 0.5, pad=6 + LINE_HEIGHT * len(lines))
    if lines:
        axis.annotate(
            "\n".join(lines),
            (0.5, 1),
            xycoords="axes fraction",
            xytext=(0, 3),
            textcoords="offset points",
            ha="center",
            va="bottom",
            fontsize=TEXT,
            color=MUTED,
        )


def _legend(figure: Figure, panels: list[Panel], data: pd.DataFrame, colours: Colours) -> list[Line2D | Patch]:
    """Legend entries: one per label with points and one per kind of mark in the figure."""
    kinds = {figure.axis(panel) for panel in panels}
    named = set(data.loc[data["panel"].isin([p.title for p in panels if figure.axis(p) != "cell"]), "label"])
    handles: list[Line2D | Patch] = [
        Line2D([], [], color=colour, linewidth=1.6, label=label) for label, colour in colours.items() if label in named
    ]
    if data["low"].notna().any() and not kinds <= {"surface", "roofline"}:
        handles.append(
            Patch(color="grey", alpha=0.3, linewidth=0, label=INTERVAL)
            if kinds & set(LINES)
            else Line2D([], [], color="black", marker="|", markersize=9, linestyle="none", label=INTERVAL)
        )
    if is_cut(figure, panels, data):
        handles.append(Line2D([], [], color="black", label=CUT, **CUT_MARK["high"]))
    if data["reported"].notna().any():
        colour = "grey" if kinds & set(LINES) else PAPER_COLOUR
        handles.append(Line2D([], [], markeredgecolor=colour, label=PAPER, **PAPER_MARK))
    if data["first_reuse"].any():
        handles.append(Line2D([], [], color="grey", label=FIRST_REUSE, **REUSE_MARK))
    return handles + (legend() if "roofline" in kinds else [])
