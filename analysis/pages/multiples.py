"""Small multiples as SVG in a page: lines of rules over a few numbers, in the page's colours, light or dark.

Drawn by hand as `pages.forest` is: they need no script, and a reader can point at a line to read its name.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from markupsafe import Markup

from redraft.analysis.figures.parts import DISTINCT, GREY, Hue
from redraft.analysis.tables.render import TEMPLATES

WIDTH, HEIGHT = 250, 150
"""Pixels of a diagram without its axes."""
LEFT, RIGHT, TOP, BOTTOM = 46, 10, 8, 40
"""Pixels around it."""
TICKS = 5
"""Most ticks of an axis."""
ROOM = 0.04
"""Share of an axis that stays free at its ends."""
Points = Sequence[tuple[float, float]]
Lines = Mapping[str, Points]


@dataclass(frozen=True)
class Style:
    """A line's colour and dashes."""

    hue: Hue
    dashes: str = ""


@dataclass(frozen=True)
class Panel:
    """A diagram.

    Attributes:
        title: what its vertical axis shows.
        x: what its horizontal axis shows.
        lines: label to points; unknown values are left out. A single point stands without a line.
    """

    title: str
    x: str
    lines: Lines

    @property
    def points(self) -> list[tuple[float, float]]:
        """Those of all lines that can be drawn."""
        return [point for points in self.lines.values() for point in known(points)]


DASHED, DOTTED = "6 3", "2 3"
_GREY, _BLUE, _ORANGE, _GREEN, _PINK, _SKY, _OLIVE, _VIOLET = DISTINCT
STYLES = {
    "mean": Style(_GREY),
    "10": Style(GREY, DOTTED),
    "50": Style(GREY, DASHED),
    "90": Style(GREY, DOTTED),
    "no reuse": Style(_GREY),
    "no verification": Style(_GREY, DASHED),
    "random cut": Style(GREY, DOTTED),
    "published, l = 1": Style(_ORANGE),
    "published, l = 1, renewed": Style(_ORANGE, DASHED),
    "published, l = e^0.2": Style(_PINK, DASHED),
    "published, l = e^0.5": Style(_PINK),
    "published, l = e^0.5, every": Style(_PINK, DOTTED),
    "residual": Style(_BLUE),
    "residual, top": Style(_BLUE, DASHED),
    "block": Style(_GREEN),
    "block, top": Style(_GREEN, DASHED),
    "Gumbel": Style(_SKY, DASHED),
    "one-hot": Style(_VIOLET),
    "weighted": Style(_OLIVE),
    "adaptive": Style(_OLIVE, DASHED),
}
"""Styles of rules by the beginnings of their names, the same in all diagrams; of means and percentiles."""


def style(label: str) -> Style:
    """Style of a line: that of the longest name that its label begins with."""
    named = [name for name in STYLES if label.startswith(name)]
    return STYLES[max(named, key=len)] if named else Style(_OLIVE)


def known(points: Points) -> list[tuple[float, float]]:
    """The points both of whose numbers are known."""
    return [(x, y) for x, y in points if math.isfinite(x) and math.isfinite(y)]


def multiples(panels: Sequence[Panel]) -> Markup:
    """The diagrams beside each other under one legend; those without a point are left out."""
    shown = [panel for panel in panels if panel.points]
    labels = list(dict.fromkeys(label for panel in shown for label, points in panel.lines.items() if known(points)))
    content = [_drawn(panel) for panel in shown]
    size = {"width": WIDTH, "height": HEIGHT, "left": LEFT, "top": TOP, "whole_width": LEFT + WIDTH + RIGHT,
            "whole_height": TOP + HEIGHT + BOTTOM}  # fmt: skip
    return Markup(
        TEMPLATES.get_template("multiples.html.j2").render(
            panels=content, legend=[(said(label), style(label)) for label in labels], **size
        )
    )


def said(label: str) -> str:
    """A rule's name as pages write it."""
    return label.replace("l = ", "\N{SCRIPT SMALL L} = ").replace(", top", " top")


def _drawn(panel: Panel) -> dict[str, object]:
    """A diagram's ticks and lines in pixels, and what it says to those who do not see it."""
    xs, ys = zip(*panel.points, strict=True)
    x_ends, y_ends = _ends(xs), _ends([*ys, 0.0])
    whole, lines = all(float(x).is_integer() for x in xs), []
    for label, points in panel.lines.items():
        shown = known(points)
        if shown:
            places = [(_at(x, x_ends, WIDTH), HEIGHT - _at(y, y_ends, HEIGHT)) for x, y in shown]
            lines.append({"label": said(label), "style": style(label), "places": places, "last": number(shown[-1][1])})
    return {
        "title": panel.title, "x": panel.x, "lines": lines,
        "x_ticks": [(_at(tick, x_ends, WIDTH), number(tick)) for tick in ticks(*x_ends, whole=whole)],
        "y_ticks": [(HEIGHT - _at(tick, y_ends, HEIGHT), number(tick)) for tick in ticks(*y_ends)],
    }  # fmt: skip


def _ends(values: Sequence[float]) -> tuple[float, float]:
    """Ends of an axis on which all values lie, with some room."""
    low, high = min(values), max(values)
    room = ROOM * (high - low) or ROOM * max(abs(high), 1e-9)
    return low - room, high + room


def _at(value: float, ends: tuple[float, float], pixels: int) -> float:
    low, high = ends
    return round((value - low) / (high - low) * pixels, 1)


def ticks(low: float, high: float, whole: bool = False) -> list[float]:
    """At most `TICKS` round numbers between two ends, whole ones if asked for."""
    power = 10 ** math.floor(math.log10((high - low) / TICKS))
    power = max(power, 1) if whole else power
    every = next(step * power for step in (1, 2, 5, 10) if (high - low) / (step * power) < TICKS)
    return [every * i for i in range(math.ceil(low / every - 1e-9), math.floor(high / every + 1e-9) + 1)]


def number(value: float) -> str:
    """Three digits, with a true minus; what rounding explains is 0."""
    text = "0" if abs(value) < 1e-12 else f"{value:.3g}"
    return text.replace("-", "\N{MINUS SIGN}")
