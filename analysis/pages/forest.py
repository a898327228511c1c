"""Forest plots as SVG: a point with its interval, next to the paper's value, no effect and the machine's noise.

An interval that goes on beyond the axis (`redraft.analysis.figures.view`) ends in an arrow at its end.

Templates and not Matplotlib: two hundred of them are in one page, take its colours, light or dark, and say a point's
sentence to a pointer. Matplotlib's SVG can do neither; after `redraft.analysis.figures.svg` it is still 4.3 times as
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
"""Pixels: labels, diagram, and height of a line."""
SMALL, SMALL_LINE = 150, 13
"""Pixels: width of a claim's plot and height of one of its lines."""
MOST = 6
"""Lines of a claim's plot; more parts are drawn as the first of them."""
MARGIN_SHARE = 0.08
"""Share of an axis that stays free at its ends."""
FACTORS = (0.1, 0.2, 0.5, 0.7, 1, 1.5, 2, 3, 4, 5, 7, 10, 20, 50, 100)
FEW_FACTORS = (0.1, 0.5, 1, 2, 5, 10, 50)
"""Ticks of a logarithmic axis, and those of one with more than seven of them."""


def headline_plot(points: Sequence[HeadlineNumber], log: bool, noise: float = math.nan) -> Markup:
    """Plot of the first screen, of points of one kind.

    Args:
        points: those of finished runs, all factors or all differences.
        log: whether they are factors by which less is spent, on a logarithmic axis, `percent fewer` among them.
        noise: longest over shortest time of equal work, a band around no effect below points of seconds.
    """
    drawn = []
    for p in points:
        mean, low, high, reported = (_factor(value, p.form) for value in (p.mean, p.low, p.high, p.reported))
        if math.isfinite(mean):
            drawn.append((p, mean, min(low, high), max(low, high), reported))
    if not drawn:
        return Markup("")
    neutral = 1.0 if log else 0.0
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
            label=LABEL,
            width=WIDTH,
            line=LINE,
            height=LINE * len(lines),
        )
    )


def claim_plot(parts: Sequence[dict[str, Any]]) -> Markup:
    """Plot of a claim's parts: intervals, means, and the side of each threshold that the paper asserts."""
    drawn = [part for part in parts if part["mean"] is not None][:MOST]
    if not drawn:
        return Markup("")
    lows, highs = ([math.nan if part[name] is None else part[name] for part in drawn] for name in ("low", "high"))
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
    """Pixels of an interval, none of an unknown one, and the ends at which it goes on beyond the axis."""
    cut = [end for end, beyond in (("low", low < shown.low), ("high", high > shown.high)) if beyond]
    return {"interval": [axis(low), axis(high)] if math.isfinite(low) and math.isfinite(high) else [], "cut": cut}


def _factor(value: float, form: str) -> float:
    """A number as the factor by which less is spent: 69 % fewer is 3.2 times less."""
    if form != "percent fewer":
        return value
    return 100 / (100 - value) if value < 100 else math.nan


def _ticks(axis: Axis) -> list[tuple[float, str]]:
    """Pixels and texts of a few round numbers."""
    if axis.log:
        inside = [v for v in FACTORS if axis.low < v < axis.high]
        return [(axis(v), f"{v:g} ×") for v in inside if len(inside) <= 7 or v in FEW_FACTORS]
    found = ticks(axis.low, axis.high, most=7)
    return [(axis(v), f"{v:+g}".replace("-", "\N{MINUS SIGN}").replace("+0", "0")) for v in found]
