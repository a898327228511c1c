"""Forest plots as SVG: a point with its interval a line, beside the paper's value, no effect and the machine's noise.

An interval that goes on beyond the axis (`redraft.analysis.figures.view`) ends in an arrow at its end.

Drawn by hand rather than by matplotlib: two hundred of them stand in one page, each of a few hundred bytes, and take
the page's colours, light or dark.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from markupsafe import Markup

from redraft.analysis.figures.view import View, view
from redraft.analysis.pages.headline import Point, number
from redraft.analysis.tables.render import TEMPLATES

LABEL, WIDTH, LINE = 232, 300, 25
"""Pixels: labels, diagram, and height of a line."""
SMALL, SMALL_LINE = 150, 13
"""Pixels: width of a claim's plot and height of one of its lines."""
MOST = 6
"""Lines of a claim's plot; more parts are drawn as the first of them."""


@dataclass(frozen=True)
class Axis:
    """Numbers to pixels from 0 to `width`, by logarithms if `log`; what lies outside stands at the edge."""

    low: float
    high: float
    width: int
    log: bool = False

    def __call__(self, value: float) -> float:
        """Pixels of a number."""
        low, high, value = map(self._scaled, (self.low, self.high, max(value, 1e-9) if self.log else value))
        return round(min(max((value - low) / (high - low), 0.0), 1.0) * self.width, 1)

    def at(self, value: float | None) -> float | None:
        """Pixels of a number that may be unknown."""
        return self(value) if value is not None and math.isfinite(value) else None

    def _scaled(self, value: float) -> float:
        return math.log(value) if self.log else value


def _axis(values: Sequence[float], width: int, log: bool = False) -> Axis:
    """An axis on which all numbers lie, with some room."""
    finite = [value for value in values if math.isfinite(value) and (value > 0 or not log)]
    low, high = min(finite), max(finite)
    if log:
        room = max((high / low) ** 0.08, 1.05)
        return Axis(low / room, high * room, width, log)
    room = 0.08 * (high - low) or max(abs(high), 1.0) * 0.1
    return Axis(low - room, high + room, width)


def headline_plot(points: Sequence[Point], log: bool, noise: float = math.nan) -> Markup:
    """Plot of the first screen, of points of one kind.

    Args:
        points: those of finished runs, all factors or all differences.
        log: whether they are factors by which less is spent, on a logarithmic axis, `percent fewer` among them.
        noise: longest over shortest time of equal work, a band around no effect behind points of seconds.
    """
    drawn = [(p, _Place.of(p, log)) for p in points if math.isfinite(p.mean)]
    if not drawn:
        return Markup("")
    neutral = 1.0 if log else 0.0
    band = [1 / noise, noise] if log and math.isfinite(noise) and any(p.timed for p, _ in drawn) else []
    fixed = [neutral, *band, *(value for _, place in drawn for value in (place.mean, place.reported))]
    shown = view(fixed, [place.low for _, place in drawn], [place.high for _, place in drawn], log)
    axis = _axis(shown, WIDTH, log)
    lines = [
        {
            "short": p.short, "text": number(p.mean, p.form), "sentence": p.sentence, "finding": p.finding,
            "y": LINE * i + LINE / 2, "x": axis(place.mean), "from": axis.at(place.low), "to": axis.at(place.high),
            "paper": axis.at(place.reported), "cut": _cut(place.low, place.high, shown),
        }
        for i, (p, place) in enumerate(drawn)
    ]  # fmt: skip
    return _render("forest.html.j2", lines=lines, neutral=axis(neutral), band=[axis(edge) for edge in band],
                   ticks=_ticks(axis), label=LABEL, width=WIDTH, line=LINE, height=LINE * len(lines))  # fmt: skip


def _cut(low: float, high: float, shown: View) -> list[str]:
    """At which ends an interval goes on beyond the axis."""
    return [end for end, beyond in (("low", low < shown.low), ("high", high > shown.high)) if beyond]


class _Place(NamedTuple):
    """A point's numbers on the plot's axis, the smaller end of the interval first."""

    mean: float
    low: float
    high: float
    reported: float

    @classmethod
    def of(cls, point: Point, log: bool) -> "_Place":
        values = [point.mean, point.low, point.high, point.reported]
        mean, low, high, reported = (_factor(v, point.form) for v in values) if log else values
        return cls(mean, min(low, high), max(low, high), reported)


def _factor(value: float, form: str) -> float:
    """A number as the factor by which less is spent: 69 % fewer is 3.2 times less."""
    if form != "percent fewer":
        return value
    return 100 / (100 - value) if value < 100 else math.nan


def _ticks(axis: Axis) -> list[tuple[float, str]]:
    """Pixels and texts of a few round numbers."""
    if axis.log:
        known = [0.1, 0.2, 0.5, 0.7, 1, 1.5, 2, 3, 4, 5, 7, 10, 20, 50, 100]
        inside = [v for v in known if axis.low < v < axis.high]
        inside = [v for v in inside if v in (0.1, 0.5, 1, 2, 5, 10, 50)] if len(inside) > 7 else inside
        return [(axis(v), f"{v:g} ×") for v in inside]
    step = next(s for s in (0.5, 1, 2, 5, 10, 20, 50, 100, 1e9) if (axis.high - axis.low) / s <= 7)
    first = math.ceil(axis.low / step)
    return [(axis(step * i), f"{step * i:+g}".replace("-", "\N{MINUS SIGN}").replace("+0", "0"))
            for i in range(first, math.floor(axis.high / step) + 1)]  # fmt: skip


def claim_plot(parts: Sequence[dict[str, Any]]) -> Markup:
    """Plot of a claim's parts: intervals, means, and the side of each threshold that the paper asserts."""
    shown = [part for part in parts if part["mean"] is not None][:MOST]
    if not shown:
        return Markup("")
    fixed = [part[name] for part in shown for name in ("mean", "threshold")]
    ends = [part for part in shown if part["low"] is not None and part["high"] is not None]
    reach = view(fixed, [part["low"] for part in ends], [part["high"] for part in ends])
    axis = _axis(reach, SMALL)
    lines = [
        {
            "y": SMALL_LINE * i + SMALL_LINE / 2, "x": axis(part["mean"]), "threshold": axis(part["threshold"]),
            "above": part["expected"] == "above",
            "from": axis.at(part["low"]), "to": axis.at(part["high"]),
            "cut": _cut(part["low"], part["high"], reach) if part in ends else [],
        }
        for i, part in enumerate(shown)
    ]  # fmt: skip
    return _render("mini.html.j2", lines=lines, width=SMALL, line=SMALL_LINE, height=SMALL_LINE * len(lines))


def _render(name: str, **content: Any) -> Markup:
    return Markup(TEMPLATES.get_template(name).render(**content))
