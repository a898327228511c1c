"""Decisions that drawings and pages share: panels with data, reasons for absent ones, axes and colours."""

import math
from collections.abc import Set
from pathlib import Path
from typing import NamedTuple

import pandas as pd

from redraft.analysis.data.quantities import SPENT, of_accuracy
from redraft.analysis.figures.view import View, view
from redraft.config import Experiments, Figure, Panel
from redraft.config.quantities import ACCURACY

LINES = ("step", "epoch", *SPENT, "score")
"""Kinds of horizontal axes that are drawn as lines."""
BARS = ("cell", "bins")

NOT_RUN, NO_DATA = "not run", "no data"
NO_SWEEP = "not run: published sweep not here"
UNSAMPLED = "not sampled at this scale"
NOTHING_MEASURED = "run, and nothing to measure"

AXIS_LABELS = {
    "step": "step (from 1)",
    "epoch": "epoch (from 1)",
    "hours": "training time (h)",
    "tokens": "decoded tokens (M)",
    "updates": "update batches",
    "score": "accuracy (%)",
}
STEPS_DONE = "steps done (0: initial policy)"

INTERVAL = "95 % interval"
PAPER, PAPER_COLOUR = "paper", "#d55e00"
FIRST_REUSE = "first reuse"
CUT = "interval continues"

MOST_TICKS = 6


class Hue(NamedTuple):
    """Colour of a series on a light and on a dark background, as #rrggbb."""

    light: str
    dark: str


DISTINCT = (
    Hue("#444444", "#c9ced6"),
    Hue("#0072b2", "#4ea3e8"),
    Hue("#d55e00", "#ff8c42"),
    Hue("#009e73", "#2fc796"),
    Hue("#cc79a7", "#e39cc5"),
    Hue("#3fa0dc", "#a3dcff"),
    Hue("#8a7400", "#e0d04a"),
    Hue("#6a3d9a", "#b79cf0"),
)
"""Colours of lines. The first five are safe for colour-blind readers (Okabe and Ito); more lines get a colour scale."""
GREY = Hue("#9aa5b1", "#9aa5b1")
"""Colour of baselines' bars."""
SWEEP = (0.0, 0.72), (0.3, 1.0)
"""Range of the colour scale "plasma" with enough contrast on a light and on a dark background."""


def with_data(figure: Figure, data: pd.DataFrame) -> list[Panel]:
    """The panels that have a value."""
    measured = set(data.loc[data["reproduced"].notna(), "panel"])
    return [panel for panel in figure.panels if panel.title in measured]


def absent(figure: Figure, data: pd.DataFrame, unsampled: Set[str] = frozenset()) -> str:
    """Reasons for absent panels, one sentence each: `Not run: (a) reward; (b) length.`

    A reason that applies to all panels is given without their titles.
    """
    shown, reasons = {panel.title for panel in with_data(figure, data)}, dict[str, list[str]]()
    for panel in figure.panels:
        if panel.title not in shown:
            reason = _reason(panel, data, unsampled)
            reasons.setdefault(reason[0].upper() + reason[1:], []).append(panel.title)
    # One reason for the whole figure needs no titles of panels.
    if not shown and len(reasons) == 1:
        return f"{next(iter(reasons))}."
    return " ".join(f"{reason}: {'; '.join(titles)}." for reason, titles in reasons.items())


def _reason(panel: Panel, data: pd.DataFrame, unsampled: Set[str]) -> str:
    if panel.from_files:
        return NO_SWEEP if panel.roofline else NO_DATA
    if not unsampled.isdisjoint(of_accuracy(panel.quantity)):
        return UNSAMPLED
    return NOTHING_MEASURED if panel.title in set(data["panel"]) else NOT_RUN


def still_drawing(stem: Path) -> Path:
    """Path without suffix of the drawing of bar panels, which pages show next to interactive lines."""
    return stem.with_name(f"{stem.name}-still")


def unsampled_benchmarks(experiments: Experiments, preset: str, paper: str) -> Set[str]:
    """Benchmarks, and roles of benchmarks, that figures may name but the preset does not sample."""
    sampled = experiments.preset_of(preset, paper).benchmarks
    return set(experiments.benchmark_names()) - {"all", *sampled, *(each.role for each in sampled.values())}


def cells_not_run(panel: Panel, points: pd.DataFrame) -> str:
    """Note on the cells of a panel without points; empty if all have points."""
    run = set(points["cell"])
    # A point of a trend needs both cells.
    others = [f" or {other}" for other in panel.compared_with] or [""] * len(panel.cells)
    labels = zip(panel.cells, others, strict=True)
    missing = [panel.label(cell) + other for cell, other in labels if cell not in run]
    return f"{NOT_RUN}: {', '.join(missing)}" if missing else ""


def axis_label(figure: Figure, panel: Panel) -> str:
    """Label of the horizontal axis of lines, with its unit; accuracies and published validations begin at 0."""
    x = figure.axis(panel)
    return STEPS_DONE if x == "step" and from_initial(panel) else AXIS_LABELS[x]


def from_initial(panel: Panel) -> bool:
    """True if the points are policies, beginning with the initial one, and not steps."""
    return bool(panel.curves) or panel.quantity.startswith(ACCURACY)


def has_gaps(figure: Figure, panel: Panel) -> bool:
    """True if a step or epoch without a point breaks the line."""
    return figure.axis(panel) not in SPENT and not from_initial(panel)


def panel_view(figure: Figure, panel: Panel, data: pd.DataFrame) -> View:
    """Range of intervals that the vertical axis of a line or bar panel shows."""
    foot = [0.0] if figure.axis(panel) in BARS else []
    return view([*data["reproduced"], *data["reported"], *foot], data["low"], data["high"], panel.log)


def is_cut(figure: Figure, panels: list[Panel], data: pd.DataFrame) -> bool:
    """True if an interval exceeds the axis of one of the panels."""
    for panel in panels:
        if figure.axis(panel) in (*LINES, *BARS):
            points = data[data["panel"] == panel.title]
            shown = panel_view(figure, panel, points)
            if (points["low"] < shown.low).any() or (points["high"] > shown.high).any():
                return True
    return False


def whole_ticks(first: int, last: int) -> list[int]:
    """Ticks of an integer axis: the first number, then multiples of 1, 2 or 5 times a power of ten."""
    least = (last - first) / MOST_TICKS
    power = 10 ** math.floor(math.log10(max(least, 1)))
    every = next(factor * power for factor in (1, 2, 5, 10) if factor * power >= least)
    further = range(every * (first // every + 1), last + 1, every)
    # A tick closer to the first would overlap its number.
    return [first, *(tick for tick in further if tick - first >= every / 2)]


def smoothed(means: pd.Series, smoothing: float) -> pd.Series:
    """Exponential moving average of a line's means; `smoothing` is the weight of the past."""
    # `adjust=False` is the recursion y = s y + (1 - s) x from the first point on, without a correction of its start.
    return means.ewm(alpha=1 - smoothing, adjust=False).mean()


def hues(figure: Figure) -> dict[str, Hue]:
    """A colour for each label of lines and bins; with more labels than `DISTINCT`, a scale for all but baselines."""
    panels = [panel for panel in figure.panels if figure.axis(panel) not in ("cell", "trend", "surface", "roofline")]
    # By label over all panels, so that a line has one colour in the whole figure.
    labels = list(dict.fromkeys(label for panel in panels for label in panel.names))
    if len(labels) <= len(DISTINCT):
        return dict(zip(labels, DISTINCT, strict=False))
    cells = {panel.label(cell): cell for panel in panels for cell in panel.cells}
    baselines = [label for label in labels if cells.get(label) in figure.baselines]
    swept = [label for label in labels if label not in baselines]
    from matplotlib import colormaps
    from matplotlib.colors import to_hex

    plasma, shares = colormaps["plasma"], [i / max(len(swept) - 1, 1) for i in range(len(swept))]
    scale = [Hue(*(to_hex(plasma(low + share * (high - low))) for low, high in SWEEP)) for share in shares]
    return dict.fromkeys(baselines, DISTINCT[0]) | dict(zip(swept, scale, strict=True))


def bar_hue(figure: Figure, cell: str) -> Hue:
    """Colour of a cell's bar, which only distinguishes baselines: the axis names the cell."""
    return GREY if cell in figure.baselines else DISTINCT[1]
