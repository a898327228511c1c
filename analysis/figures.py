"""Drawing of a whole figure from the points of `analysis.figure_data`; `analysis.panels` draws its diagrams."""

import math
import textwrap
from pathlib import Path

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure as Drawing
from matplotlib.lines import Line2D

from analysis.panels import BARS, DISTINCT, DRAWN, GREY, LINES, NOT_RUN, Colours, plt
from redraft.config import Figure, Panel
from redraft.files import atomic

PANEL_WIDTH, PANEL_HEIGHT = 3.7, 2.6
"""Inches."""
NO_DATA = "no data"
NOTE_SIZE, LINE_HEIGHT = 7, 9.5
"""Size and line height of a note, points."""
LETTERS_PER_INCH = 16
"""Letters of a note in an inch; the widest of the labels take less."""
LEGEND_KEY = 0.65
"""Inches that an entry of the legend takes beside its letters."""


def draw(figure: Figure, data: pd.DataFrame, stem: Path, stand_in: str = "") -> None:
    """Draw the points as `<stem>.png` and `<stem>.svg`, under a line that says so if they are a stand-in's."""
    drawing = plot(figure, data)
    if stand_in:
        drawing.suptitle(stand_in, fontsize=NOTE_SIZE, style="italic", color="grey")
    for suffix in (".png", ".svg"):
        with atomic(stem.with_suffix(suffix)) as temporary:
            drawing.savefig(
                temporary, format=suffix[1:], dpi=120, metadata={"Date": None} if suffix == ".svg" else None
            )
    plt.close(drawing)


def plot(figure: Figure, data: pd.DataFrame) -> Drawing:
    """The drawing of a figure's points, one axis a panel."""
    columns = min(figure.columns, len(figure.panels))
    rows = math.ceil(len(figure.panels) / columns)
    wide = PANEL_WIDTH if columns > 1 else 1.9 * PANEL_WIDTH
    height = PANEL_HEIGHT * (1 if rows > 1 else 1.3)
    fig, axes = plt.subplots(
        rows, columns, figsize=(wide * columns, height * rows + 0.4), squeeze=False, layout="constrained"
    )
    colours = _colours(figure)
    for i, (axis, panel) in enumerate(zip(axes.flat, figure.panels, strict=False)):
        part, x = data[data["panel"] == panel.title], figure.axis(panel)
        DRAWN[x](axis, panel, part, colours, x)
        if part.empty and x != "cell":
            _say_empty(axis, NO_DATA if panel.from_files else NOT_RUN)
        _head(axis, panel.title, "" if x == "cell" else _absent(panel, part, int(LETTERS_PER_INCH * wide)))
        axis.tick_params(labelsize=8)
        axis.grid(alpha=0.25, linewidth=0.6, axis="y" if x in BARS else "both")
        axis.spines[["top", "right"]].set_visible(False)
        if x in LINES and i + columns >= len(figure.panels):
            axis.set_xlabel(x, fontsize=8)
    for axis in axes.flat[len(figure.panels) :]:
        axis.set_visible(False)
    if handles := _legend(figure, data, colours):
        widest = max(len(str(handle.get_label())) for handle in handles) / LETTERS_PER_INCH + LEGEND_KEY
        fig.legend(
            handles=handles, loc="outside lower center", ncols=max(1, min(len(handles), int(wide * columns / widest))),
            fontsize=8, frameon=False,
        )  # fmt: skip
    return fig


def _absent(panel: Panel, data: pd.DataFrame, letters: int) -> str:
    """The panel's cells that were not run, in lines of so many letters; empty if all were, or none."""
    run = set(data["cell"])
    absent = [panel.label(cell) for cell in panel.cells if cell not in run]
    return "\n".join(textwrap.wrap(f"{NOT_RUN}: {', '.join(absent)}", letters)) if absent and run else ""


def _head(axis: Axes, title: str, note: str) -> None:
    """Write the title, and the note between it and the diagram: no line runs there, so that nothing is hidden."""
    axis.set_title(title, fontsize=9, pad=6 + LINE_HEIGHT * len(note.splitlines()))
    if note:
        axis.annotate(note, (0.5, 1), xycoords="axes fraction", xytext=(0, 3), textcoords="offset points", ha="center",
                      va="bottom", fontsize=NOTE_SIZE, color="grey")  # fmt: skip


def _say_empty(axis: Axes, text: str) -> None:
    """Say in the middle of a diagram why nothing is in it."""
    axis.text(0.5, 0.5, text, transform=axis.transAxes, ha="center", va="center", fontsize=9, color="grey")
    axis.set(xticks=[], yticks=[])


def _colours(figure: Figure) -> Colours:
    """A colour for each label; as many lines as a sweep has get a scale, from dark to light, beside grey baselines.

    Bars of cells are told apart by their names, so that their colour says only whether they are baselines.
    """
    cells = {panel.label(cell): cell for panel in figure.panels for cell in panel.cells}
    baselines = [label for label, cell in cells.items() if cell in figure.baselines]
    cells |= {label: "" for panel in figure.panels if panel.curves for label in panel.names}
    if figure.x == "cell":
        return {label: GREY if label in baselines else DISTINCT[1] for label in cells}
    if len(cells) <= len(DISTINCT):
        return {label: DISTINCT[i % len(DISTINCT)] for i, label in enumerate(cells)}
    scale, swept = plt.get_cmap("plasma"), [label for label in cells if label not in baselines]
    grey = dict.fromkeys(baselines, DISTINCT[0])
    return grey | {label: scale(0.9 * i / (len(swept) - 1)) for i, label in enumerate(swept)}


def _legend(figure: Figure, data: pd.DataFrame, colours: Colours) -> list[Line2D]:
    """One entry a label; dotted if no panel has a run of it."""
    handles = []
    if figure.x not in ("cell", "surface"):
        run = set(data["label"])
        absent = NO_DATA if all(panel.from_files for panel in figure.panels) else NOT_RUN
        for label, colour in colours.items():
            style, text = ("-", label) if label in run else (":", f"{label} ({absent})")
            handles.append(Line2D([], [], color=colour, linestyle=style, linewidth=1.6, label=text))
    if data["first_reuse"].any():
        handles.append(Line2D([], [], color="grey", marker="D", linestyle="none", label="first reuse"))
    if data["reported"].notna().any():
        handles.append(Line2D([], [], color="grey", marker="x", linestyle="none", label="paper"))
    return handles
