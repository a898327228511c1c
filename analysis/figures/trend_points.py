"""Trends: differences between cells, straight lines through them, and where these lines are extended to.

A line is fitted in each block of seeds, by least squares over the base-2 logarithm of the coordinate. Slopes and values
of lines are then estimated over blocks, as every other mean is (`redraft.analysis.data.statistics`).
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from redraft.analysis.data.measured import Measured
from redraft.analysis.data.statistics import estimate, paired
from redraft.analysis.data.words import with_minus
from redraft.config import Panel
from redraft.config.trends import LEAST

SLOPE, FITTED, EXTENDED, TOGETHER = "change per doubling", "fitted line", "extended line", "all extended together"
"""Values of the column `quantity` in rows that belong to no cell."""
STEPS = 24
"""Parts that the fitted line is drawn in."""


class Line(NamedTuple):
    """Fitted line of a block: its value at the panel's first coordinate, and its change per doubling."""

    first: float
    slope: float

    def at(self, doublings: float) -> float:
        """Value after so many doublings of the first coordinate."""
        return self.first + self.slope * doublings


class TrendLines(NamedTuple):
    """Fitted lines of a panel.

    Attributes:
        start: first coordinate, from which doublings count.
        by_block: line of each block that has at least `LEAST` coordinates.
        from_first: true if `start` is that of the panel's first cell, false if that cell has no point.
    """

    start: float
    by_block: dict[int, Line]
    from_first: bool = False


def trend_rows(
    panel: Panel, measured: Measured, coordinates: Mapping[str, float]
) -> tuple[list[tuple[str, str, float, dict[int, float]]], TrendLines]:
    """Values by seed that a panel shows, and its fitted lines.

    Args:
        panel: panel with a trend.
        measured: values of the runs.
        coordinates: coordinate of each cell, for a trend over keys. For a trend over a quantity they are not used: the
            coordinate is the mean measured ratio.

    Returns:
        Rows (quantity, cell, coordinate, values), and the fitted lines. Values are by seed for cells, and by block for
        fitted lines.
    """
    trend, rows = panel.trend, []
    assert trend is not None
    blocks, points = measured.runs.blocks, list[tuple[float, dict[int, float]]]()
    for cell, other in zip(panel.cells, panel.compared_with, strict=True):
        values = paired(measured.values(panel.quantity, cell), measured.values(panel.quantity, other), "difference")
        x = coordinates.get(cell, math.nan)
        if trend.quantity:
            ratios = paired(measured.values(trend.quantity, cell), measured.values(trend.quantity, other), "ratio")
            # All blocks share one coordinate: noise in a block's own coordinate would flatten its line.
            x = estimate(ratios, blocks, log=True).mean
        # A ratio is infinite if the cell it is compared with has a time of 0 to a target, or the cell never reaches it.
        if values and 0 < x < math.inf:
            rows.append((panel.quantity, cell, x, values))
            points.append((x, values))
    lines = _lines(points, blocks)._replace(from_first=bool(rows) and rows[0][1] == panel.cells[0])
    if not lines.by_block:
        return rows, lines

    def row(quantity: str, x: float, doublings: float) -> tuple[str, str, float, dict[int, float]]:
        return quantity, "", x, {block: line.at(doublings) for block, line in lines.by_block.items()}

    ends = [*(x for x, _ in points), *([trend.at] if trend.at else [])]
    drawn = np.geomspace(min(ends), max(ends), STEPS + 1)
    rows += [row(FITTED, float(x), math.log2(x / lines.start)) for x in drawn]
    rows.append((SLOPE, "", math.nan, {block: line.slope for block, line in lines.by_block.items()}))
    if trend.at:
        rows.append(row(EXTENDED, trend.at, math.log2(trend.at / lines.start)))
    return rows, lines


def _lines(points: Sequence[tuple[float, Mapping[int, float]]], blocks: Mapping[int, int]) -> TrendLines:
    """Fit a line in each block; `points` has the coordinate and the differences by seed of each cell.

    There is no line if a difference is infinite: a line over the other ones would hide a target that was never reached.
    """
    by_block: dict[int, dict[float, list[float]]] = {}
    if any(math.isinf(value) for _, values in points for value in values.values()):
        return TrendLines(math.nan, {})
    for x, values in points:
        for seed, value in values.items():
            # As in every other mean, NaN counts as missing.
            if math.isnan(value):
                continue
            by_block.setdefault(blocks.get(seed, seed), {}).setdefault(x, []).append(value)
    start, found = points[0][0] if points else math.nan, {}
    for block, of_block in by_block.items():
        if len(of_block) >= LEAST:
            doublings = [math.log2(x / start) for x in of_block]
            slope, first = np.polyfit(doublings, [np.mean(each) for each in of_block.values()], 1)
            found[block] = Line(float(first), float(slope))
    return TrendLines(start, found)


def together(panels: list[tuple[Panel, TrendLines]]) -> dict[int, float]:
    """Predicted difference by block if all extended panels were at their extended coordinates at the same time.

    This assumes that the changes add up. Empty unless the panels show one quantity over different axes, and begin with
    the same two cells, both of which were run.

    Args:
        panels: those that are extended, with their lines.
    """
    extended = [(panel.trend, lines) for panel, lines in panels if panel.trend]
    same = {(panel.quantity, panel.cells[0], panel.compared_with[0]) for panel, _ in panels}
    axes = {(trend.quantity, *sorted(trend.keys)) for trend, _ in extended}
    if len(same) != 1 or not 1 < len(axes) == len(panels) or not all(lines.from_first for _, lines in extended):
        return {}
    found = {}
    for block in set.intersection(*(set(lines.by_block) for _, lines in extended)):
        of_block = [(lines.by_block[block], math.log2(trend.at / lines.start)) for trend, lines in extended if trend.at]
        found[block] = float(np.mean([line.first for line, _ in of_block])) + sum(
            line.slope * n for line, n in of_block
        )
    return found


def trend_note(panel: Panel, points: pd.DataFrame) -> str:
    """Such as `-1.2 [-2.3, -0.1] per doubling; extended to the paper's 0.28: 0.3 [-1.0, 1.6]`; empty without a line."""
    parts: list[str] = []
    label = panel.trend.at_label if panel.trend else ""
    words = {
        SLOPE: "{} per doubling",
        EXTENDED: f"extended to {label}: {{}}",
        TOGETHER: "all extensions of this figure together: {}",
    }
    for quantity, text in words.items():
        for point in points[points["quantity"] == quantity].to_dict("records"):
            parts.append(text.format(_words(point)))
    return "; ".join(parts)


def _words(point: Mapping[str, Any]) -> str:
    # Three digits, since quantities may be as small as a drift; adding 0 turns -0 into 0.
    mean, low, high = (f"{float(f'{point[name]:.3g}') + 0:.6g}" for name in ("reproduced", "low", "high"))
    # After a space, which `with_minus` looks for.
    return with_minus(f" {mean}" if math.isnan(point["low"]) else f" {mean} [{low}, {high}]")[1:]
