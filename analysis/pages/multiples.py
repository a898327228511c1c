"""Small multiples as SVG in a page: line diagrams in the page's light or dark colours.

The template replaces Matplotlib, whose SVG is still 1.8 times as large after `redraft.analysis.figures.svg` (12.0 kB
for nine lines of five points), has no dark colours and no tooltips. uPlot, which draws the
lines of figures, needs a script.
"""

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import cycle, product
from typing import NamedTuple

from markupsafe import Markup

from redraft.analysis.figures.figure_parts import DISTINCT, Hue
from redraft.analysis.figures.view import Axis, ticks
from redraft.analysis.tables.render import TEMPLATES

WIDTH, HEIGHT = 250, 150
"""Pixels of a diagram without its axes."""
LEFT, RIGHT, TOP, BOTTOM = 46, 10, 8, 40
"""Pixels around it."""
MARGIN_SHARE = 0.04
"""Margin at each end of an axis, as a share of its range."""
DASHES = ("", "6 3", "2 3", "9 3 2 3")
"""Dash patterns of lines, in pixels; solid lines come first."""
Points = Sequence[tuple[float, float]]
Lines = Mapping[str, Points]


class Style(NamedTuple):
    """A line's dashes and colour."""

    dashes: str
    hue: Hue


@dataclass(frozen=True)
class Diagram:
    """A diagram.

    Attributes:
        title: title, which names the vertical axis.
        x: label of the horizontal axis.
        lines: label to points; NaN is left out. A single point is drawn without a line.
    """

    title: str
    x: str
    lines: Lines

    @property
    def known(self) -> dict[str, list[tuple[float, float]]]:
        """The lines with finite points only; lines without any are left out."""
        found = {
            label: [(x, y) for x, y in points if math.isfinite(x) and math.isfinite(y)]
            for label, points in self.lines.items()
        }
        return {label: points for label, points in found.items() if points}


def palette(labels: Iterable[str]) -> dict[str, Style]:
    """A style for each label, in their order: all colours with unbroken lines first, then with dashed ones."""
    styles = (Style(*each) for each in cycle(product(DASHES, DISTINCT)))
    return dict(zip(dict.fromkeys(labels), styles, strict=False))


def multiples(diagrams: Sequence[Diagram], styles: Mapping[str, Style] | None = None) -> Markup:
    """The diagrams in a grid with one legend; diagrams without points are left out.

    `styles` maps labels to styles, for pages with several grids; the `palette` of these labels if None.
    """
    shown = [diagram for diagram in diagrams if diagram.known]
    labels = dict.fromkeys(label for diagram in shown for label in diagram.known)
    styles = palette(labels) if styles is None else styles
    return Markup(
        TEMPLATES.get_template("multiples.html.j2").render(
            diagrams=[_diagram(diagram, styles) for diagram in shown],
            legend=[(rule_label(label), styles[label]) for label in labels],
            width=WIDTH,
            height=HEIGHT,
            left=LEFT,
            top=TOP,
            whole_width=LEFT + WIDTH + RIGHT,
            whole_height=TOP + HEIGHT + BOTTOM,
        )
    )


def rule_label(label: str) -> str:
    """A rule's name as pages write it: `published, ℓ = e^0.5, fresh every 4 epoch passes`."""
    text = label.replace("l = ", "\N{SCRIPT SMALL L} = ").replace(", top", " top")
    return re.sub(r"every (\d+) visits fresh", r"fresh every \1 epoch passes", text)


def _diagram(diagram: Diagram, styles: Mapping[str, Style]) -> dict[str, object]:
    """A diagram's ticks and lines in pixels, with the last values for screen readers."""
    xs, ys = zip(*(point for points in diagram.known.values() for point in points), strict=True)
    # 0 is always shown: these are distances, differences and shares, which are read against it.
    x_axis, y_axis = Axis.around(xs, MARGIN_SHARE, 0, WIDTH), Axis.around([*ys, 0.0], MARGIN_SHARE, HEIGHT, 0)
    # Epochs and group sizes have no halves.
    whole = all(float(x).is_integer() for x in xs)
    return {
        "title": diagram.title,
        "x": diagram.x,
        "lines": [
            {
                "label": rule_label(label),
                "style": styles[label],
                "points": [(x_axis(x), y_axis(y)) for x, y in points],
                "last": number(points[-1][1]),
            }
            for label, points in diagram.known.items()
        ],
        "x_ticks": [(x_axis(tick), number(tick)) for tick in ticks(x_axis.low, x_axis.high, whole)],
        "y_ticks": [(y_axis(tick), number(tick)) for tick in ticks(y_axis.low, y_axis.high)],
    }


def number(value: float) -> str:
    """Three significant digits; values below 1e-12 are 0."""
    # Exact zeros of enumerations come out as 1e-17.
    text = "0" if abs(value) < 1e-12 else f"{value:.3g}"
    return text.replace("-", "\N{MINUS SIGN}")
