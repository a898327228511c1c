"""What of a figure is shown, in drawings and pages alike: its panels with data, its axes and its colours."""

import math
from collections.abc import Set
from pathlib import Path
from typing import NamedTuple

import pandas as pd

from redraft.analysis.data.quantities import ACCURACY, SPENT, of_accuracy
from redraft.analysis.figures.view import View, view
from redraft.config import Experiments, Figure, Panel

LINES = ("step", "epoch", *SPENT)
"""Axes of figures that are lines."""
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
}
STEPS_DONE = "steps done (0: initial policy)"

INTERVAL = "95 % interval"
PAPER, PAPER_COLOUR = "paper", "#d55e00"
FIRST_REUSE = "first reuse"
CUT = "interval goes on"

MOST_TICKS = 6


class Hue(NamedTuple):
    """A series' colour, on light and on dark ground, as #rrggbb."""

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
"""Colours of lines, the first five told apart by colour-blind people too (Okabe and Ito); more lines get a scale."""
GREY = Hue("#9aa5b1", "#9aa5b1")
"""Colour of a baseline's bar."""
SWEEP = (0.0, 0.72), (0.3, 1.0)
"""Part of the scale "plasma" that stands out from light and from dark ground."""


def with_data(figure: Figure, data: pd.DataFrame) -> list[Panel]:
    """The panels that have a value."""
    measured = set(data.loc[data["reproduced"].notna(), "panel"])
    return [panel for panel in figure.panels if panel.title in measured]


def absent(figure: Figure, data: pd.DataFrame, unsampled: Set[str] = frozenset()) -> str:
    """Why panels are not shown, a sentence a reason: `Not run: (a) reward; (b) length.` A reason of all names none."""
    shown, reasons = {panel.title for panel in with_data(figure, data)}, dict[str, list[str]]()
    for panel in figure.panels:
        if panel.title not in shown:
            reasons.setdefault(_reason(panel, data, unsampled), []).append(panel.title)
    if not shown and len(reasons) == 1:
        return f"{_capital(*reasons)}."
    return " ".join(f"{_capital(reason)}: {'; '.join(titles)}." for reason, titles in reasons.items())


def _capital(text: str) -> str:
    """The text with a capital letter in front, the others as they are."""
    return text[0].upper() + text[1:]


def _reason(panel: Panel, data: pd.DataFrame, unsampled: Set[str]) -> str:
    if panel.from_files:
        return NO_SWEEP if panel.roofline else NO_DATA
    if not unsampled.isdisjoint(of_accuracy(panel.quantity)):
        return UNSAMPLED
    return NOTHING_MEASURED if panel.title in set(data["panel"]) else NOT_RUN


def still_drawing(stem: Path) -> Path:
    """The drawing of those panels of a figure that pages do not draw themselves, without suffix."""
    return stem.with_name(f"{stem.name}-still")


def unsampled_benchmarks(experiments: Experiments, preset: str, paper: str) -> Set[str]:
    """Benchmarks that figures may name and a preset leaves out."""
    return experiments.benchmark_file().sets.keys() - experiments.preset_of(preset, paper).benchmarks.keys()


def cells_not_run(panel: Panel, points: pd.DataFrame) -> str:
    """The cells of a panel that have no points, in a line; empty if all have some."""
    run = set(points["cell"])
    missing = [panel.label(cell) for cell in panel.cells if cell not in run]
    return f"{NOT_RUN}: {', '.join(missing)}" if missing else ""


def axis_label(figure: Figure, panel: Panel) -> str:
    """What the horizontal axis of lines counts, with its unit; accuracies and published validations begin at 0."""
    x = figure.axis(panel)
    return STEPS_DONE if x == "step" and from_initial(panel) else AXIS_LABELS[x]


def from_initial(panel: Panel) -> bool:
    """True if the points are of policies, the initial one first, and not of steps."""
    return bool(panel.curves) or panel.quantity.startswith(ACCURACY)


def has_gaps(figure: Figure, panel: Panel) -> bool:
    """True if a step or epoch without a point breaks the line."""
    return figure.axis(panel) not in SPENT and not from_initial(panel)


def panel_view(figure: Figure, panel: Panel, data: pd.DataFrame) -> View:
    """What the vertical axis of a panel of lines or bars shows of its intervals."""
    foot = [0.0] if figure.axis(panel) in BARS else []
    return view([*data["reproduced"], *data["reported"], *foot], data["low"], data["high"], panel.log)


def is_cut(figure: Figure, panels: list[Panel], data: pd.DataFrame) -> bool:
    """True if an interval goes on beyond the axis of one of the panels."""
    for panel in panels:
        if figure.axis(panel) in (*LINES, *BARS):
            points = data[data["panel"] == panel.title]
            shown = panel_view(figure, panel, points)
            if (points["low"] < shown.low).any() or (points["high"] > shown.high).any():
                return True
    return False


def whole_ticks(first: int, last: int) -> list[int]:
    """Ticks of an axis of whole numbers: the first one, and behind it multiples of 1, 2 or 5 and a power of ten."""
    least = (last - first) / MOST_TICKS
    power = 10 ** math.floor(math.log10(max(least, 1)))
    every = next(factor * power for factor in (1, 2, 5, 10) if factor * power >= least)
    further = range(every * (first // every + 1), last + 1, every)
    return [first, *(tick for tick in further if tick - first >= every / 2)]


def smoothed(means: pd.Series, smoothing: float) -> pd.Series:
    """The exponential moving average of a line's means, in which the past weighs `smoothing`."""
    return means.ewm(alpha=1 - smoothing, adjust=False).mean()


def hues(figure: Figure) -> dict[str, Hue]:
    """A colour for each label of lines and bins; more of them than `DISTINCT` has get a scale beside dark baselines."""
    panels = [panel for panel in figure.panels if figure.axis(panel) not in ("cell", "surface", "roofline")]
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
    """The colour of a cell's bar: its name tells it apart, so that the colour says only whether it is a baseline."""
    return GREY if cell in figure.baselines else DISTINCT[1]
