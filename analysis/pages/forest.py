"""Forest plots as SVG: points with intervals, the paper's values, the line of no effect and the machine's noise.

An interval that exceeds the axis (`redraft.analysis.figures.view`) ends in an arrow.

The plots are templates and not Matplotlib drawings: a page has two hundred of them, in its light or dark colours, with
tooltips. Matplotlib's SVG has neither; after `redraft.analysis.figures.svg` it is still 4.3 times as
large for a claim (2.3 kB, 44 ms) and 2.4 times for eight points (9.9 kB).
"""

import math
from collections.abc import Sequence
from typing import Any

from markupsafe import Markup

from redraft.analysis.figures.view import Axis, View, ticks, view
from redraft.analysis.pages.headline import HeadlineNumber, number
from redraft.analysis.tables.render import TEMPLATES

LABEL, WIDTH, LINE = 232, 300, 25
"""Pixels: least width of labels, width of the plot, height of a line."""
CHARACTER = 6.8
"""Pixels of a label's character, in the mean of wide fonts; a longer label makes the drawing wider."""
SMALL, SMALL_LINE = 150, 13
"""Pixels: width of a claim's plot and height of one of its lines."""
MAX_LINES = 6
"""Lines of a claim's plot; of more parts only the first are drawn."""
MARGIN_SHARE = 0.08
"""Margin at each end of an axis, as a share of its range."""
FACTORS = (0.1, 0.2, 0.5, 0.7, 1, 1.5, 2, 3, 4, 5, 7, 10, 20, 50, 100)
FEW_FACTORS = (0.1, 0.5, 1, 2, 5, 10, 50)
"""Ticks of a logarithmic axis, and fewer ticks for an axis that would have more than seven."""


def headline_plot(points: Sequence[HeadlineNumber], log: bool, noise: float = math.nan) -> Markup:
    """Plot of headline numbers of one kind, all factors or all differences.

    Args:
        points: numbers of finished runs.
        log: whether they are reduction factors, on a logarithmic axis; `percent fewer` is converted to a factor.
        noise: longest over shortest time of equal work, drawn as a band if a point is computed from times.
    """
    drawn = []
    for p in points:
        mean, low, high, reported = (_factor(value, p.form) for value in (p.mean, p.low, p.high, p.reported))
        if math.isfinite(mean):
            drawn.append((p, mean, min(low, high), max(low, high), reported))
    if not drawn:
        return Markup("")
    neutral = 1.0 if log else 0.0
    # Only next to times: accuracies and token counts do not depend on the machine's load.
    band = [1 / noise, noise] if log and math.isfinite(noise) and any(p.timed for p, *_ in drawn) else []
    _, means, lows, highs, printed = zip(*drawn, strict=True)
    shown = view([neutral, *band, *means, *printed], lows, highs, log)
    axis = Axis.around(shown, MARGIN_SHARE, 0, WIDTH, log)
    lines = [
        {
            "short": p.short,
            "text": number(p.mean, p.form),
            "sentence": p.sentence,
            "finding": p.finding,
            "y": LINE * i + LINE / 2,
            "x": axis(mean),
            "paper": [axis(reported)] if math.isfinite(reported) else [],
            **_interval(axis, shown, low, high),
        }
        for i, (p, mean, low, high, reported) in enumerate(drawn)
    ]
    return Markup(
        TEMPLATES.get_template("forest.html.j2").render(
            lines=lines,
            neutral=axis(neutral),
            band=[axis(edge) for edge in band],
            ticks=_ticks(axis),
            label=max(LABEL, round(CHARACTER * max(len(p.short) for p, *_ in drawn))),
            width=WIDTH,
            line=LINE,
            height=LINE * len(lines),
        )
    )


def claim_plot(parts: Sequence[dict[str, Any]]) -> Markup:
    """Plot of a claim's parts: means, intervals, and the range that the paper asserts."""
    drawn = [part for part in parts if part["mean"] is not None][:MAX_LINES]
    if not drawn:
        return Markup("")
    lows, highs = ([math.nan if part[name] is None else part[name] for part in drawn] for name in ("low", "high"))
    # The threshold is always visible, since the verdict is the side of it on which the interval is.
    shown = view([part[name] for part in drawn for name in ("mean", "threshold")], lows, highs)
    axis = Axis.around(shown, MARGIN_SHARE, 0, SMALL)
    lines = [
        {
            "y": SMALL_LINE * i + SMALL_LINE / 2,
            "x": axis(part["mean"]),
            "threshold": axis(part["threshold"]),
            "above": part["expected"] == "above",
            **_interval(axis, shown, low, high),
        }
        for i, (part, low, high) in enumerate(zip(drawn, lows, highs, strict=True))
    ]
    return Markup(
        TEMPLATES.get_template("mini.html.j2").render(
            lines=lines, width=SMALL, line=SMALL_LINE, height=SMALL_LINE * len(lines)
        )
    )


def _interval(axis: Axis, shown: View, low: float, high: float) -> dict[str, Any]:
    """Pixels of an interval (empty if unknown), and the ends at which it exceeds the axis."""
    cut = [end for end, beyond in (("low", low < shown.low), ("high", high > shown.high)) if beyond]
    return {"interval": [axis(low), axis(high)] if math.isfinite(low) and math.isfinite(high) else [], "cut": cut}


def _factor(value: float, form: str) -> float:
    """A number as a reduction factor: 69 % fewer is a factor of 3.2."""
    if form != "percent fewer":
        return value
    return 100 / (100 - value) if value < 100 else math.nan


def _ticks(axis: Axis) -> list[tuple[float, str]]:
    """Pixels and labels of ticks."""
    if axis.log:
        # Round factors instead of powers of ten, of which such an axis often has none.
        inside = [v for v in FACTORS if axis.low < v < axis.high]
        return [(axis(v), f"{v:g} ×") for v in inside if len(inside) <= 7 or v in FEW_FACTORS]
    found = ticks(axis.low, axis.high, most=7)
    return [(axis(v), f"{v:+g}".replace("-", "\N{MINUS SIGN}").replace("+0", "0")) for v in found]
