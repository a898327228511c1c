"""Small multiples of a table along training: a drawing for each series and column, over the steps of its policies.

A template and not Matplotlib, whose SVG of six points is still 2.7 times as large after `redraft.analysis.figures.svg`
(1.9 kB, 29 ms), and has neither the page's colours nor its own words.
"""

import math
from dataclasses import dataclass

from redraft.analysis.figures.view import EVERYTHING, Axis, view
from redraft.analysis.tables.sheet import Sheet, SheetRow, Slot, number

WIDTH, HEIGHT, MARGIN = 120.0, 40.0, 4.0
"""Size of a drawing in CSS pixels, and what stays free at its edges."""

Point = tuple[float, float]


@dataclass(frozen=True)
class Sparkline:
    """A drawing: coordinates of the mean, of the interval's outline and of the paper's values; and what it says."""

    mean: list[Point]
    band: list[Point]
    paper: list[Point]
    last: Slot
    words: str


@dataclass(frozen=True)
class SparklineTable:
    """All drawings of a table by series, and the range of values that each column's drawings span."""

    steps: tuple[int, int]
    ranges: list[str]
    series: list[tuple[str, list[Sparkline | None]]]


def trajectories(sheet: Sheet) -> SparklineTable:
    """The drawings of the lines that were run; a column's share their axis of values, all share that of steps."""
    # `step` is text: that of the initial policy is "0", which is true, and only last policies without a step are false.
    lines = [line for line in sheet.lines if line.step and line.was_run]
    by_series: dict[str, list[SheetRow]] = {}
    for line in lines:
        by_series.setdefault(line.series, []).append(line)
    steps = [int(line.step) for line in lines]
    first, last = min(steps, default=0), max(steps, default=0)
    over, columns = Axis(first, last, MARGIN, WIDTH - MARGIN), range(len(sheet.headers))
    axes: list[Axis | None] = []
    for i in columns:
        cells = [line.slots[i].cell for line in lines]
        points = [float(cell[name]) for cell in cells for name in ("reproduced", "reported")]
        shown = view(points, [float(cell["low"]) for cell in cells], [float(cell["high"]) for cell in cells])
        axes.append(None if shown == EVERYTHING else Axis(*shown, HEIGHT - MARGIN, MARGIN))
    decimals = [slot.column.decimals for slot in sheet.lines[0].slots]
    return SparklineTable(
        steps=(first, last),
        ranges=[
            f"{number(axis.low, digits)} to {number(axis.high, digits)}" if axis else ""
            for axis, digits in zip(axes, decimals, strict=True)
        ],
        series=[(name, [_drawn(own, i, over, axes[i]) for i in columns]) for name, own in by_series.items()],
    )


def _drawn(lines: list[SheetRow], i: int, over: Axis, axis: Axis | None) -> Sparkline | None:
    """A series' drawing in one column, None without a value."""
    slots = [(int(line.step), line.slots[i]) for line in lines]
    there = [(step, slot) for step, slot in slots if math.isfinite(slot.cell["reproduced"])]
    if axis is None or not there:
        return None
    within = [(step, slot.cell) for step, slot in there if slot.has_interval]
    outline = [(step, cell["low"]) for step, cell in within] + [(step, cell["high"]) for step, cell in reversed(within)]
    (first, start), (end, last) = there[0], there[-1]
    return Sparkline(
        mean=[(over(step), axis(slot.cell["reproduced"])) for step, slot in there],
        band=[(over(step), axis(value)) for step, value in outline],
        paper=[(over(step), axis(value)) for step, slot in slots if math.isfinite(value := slot.cell["reported"])],
        last=last,
        words=f"{lines[0].series}, {last.column.title}: {start.value} at step {first}, {last.value} at step {end}",
    )
