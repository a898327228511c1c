"""Small multiples of a table along training: a line a row of the paper's and column, over the steps of its policies."""

import math
from collections.abc import Iterable
from dataclasses import dataclass

from redraft.analysis.figures.view import EVERYTHING, view
from redraft.analysis.tables.sheet import Line, Sheet, Slot, number

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
class Trajectories:
    """All drawings of a table by series, and the range of values that each column's drawings span."""

    steps: tuple[int, int]
    ranges: list[str]
    series: list[tuple[str, list[Sparkline | None]]]


@dataclass(frozen=True)
class _Scale:
    low: float
    high: float

    def at(self, value: float) -> float:
        """Share of the way from the low end to the high one; what lies beyond stands at the end."""
        within = min(max(value, self.low), self.high)
        return 0.5 if self.high == self.low else (within - self.low) / (self.high - self.low)


def trajectories(sheet: Sheet) -> Trajectories:
    """The drawings of the lines that were run; a column's share their axis of values, all share that of steps."""
    lines = [line for line in sheet.lines if line.step and line.was_run]
    by_series: dict[str, list[Line]] = {}
    for line in lines:
        by_series.setdefault(line.series, []).append(line)
    steps = [int(line.step) for line in lines]
    over = _Scale(min(steps, default=0), max(steps, default=0))
    columns = range(len(sheet.headers))
    scales = [_scale(slot for line in lines for slot in [line.slots[i]]) for i in columns]
    return Trajectories(
        steps=(int(over.low), int(over.high)),
        ranges=[_range(scale, sheet, i) for i, scale in enumerate(scales)],
        series=[(name, [_drawn(own, i, over, scales[i]) for i in columns]) for name, own in by_series.items()],
    )


def _scale(slots: Iterable[Slot]) -> _Scale | None:
    """From the least to the largest of what is drawn, but for ends of huge intervals; None without a value."""
    cells = [slot.cell for slot in slots]
    shown = view(
        [float(cell[name]) for cell in cells for name in ("reproduced", "reported")],
        [float(cell["low"]) for cell in cells],
        [float(cell["high"]) for cell in cells],
    )
    return None if shown == EVERYTHING else _Scale(*shown)


def _range(scale: _Scale | None, sheet: Sheet, i: int) -> str:
    decimals = sheet.lines[0].slots[i].column.decimals
    return f"{number(scale.low, decimals)} to {number(scale.high, decimals)}" if scale else ""


def _drawn(lines: list[Line], i: int, over: _Scale, scale: _Scale | None) -> Sparkline | None:
    """A series' drawing in one column, None without a value."""
    there = [(int(line.step), line.slots[i]) for line in lines if math.isfinite(line.slots[i].cell["reproduced"])]
    if scale is None or not there:
        return None

    def place(step: int, value: float) -> Point:
        x = MARGIN + (WIDTH - 2 * MARGIN) * over.at(step)
        return round(x, 1), round(HEIGHT - MARGIN - (HEIGHT - 2 * MARGIN) * scale.at(value), 1)

    within = [(step, slot.cell) for step, slot in there if slot.has_interval]
    printed = [(int(line.step), line.slots[i].cell["reported"]) for line in lines]
    (first, start), (end, last) = there[0], there[-1]
    title = last.column.title
    return Sparkline(
        mean=[place(step, slot.cell["reproduced"]) for step, slot in there],
        band=[place(step, cell["low"]) for step, cell in within]
        + [place(step, cell["high"]) for step, cell in reversed(within)],
        paper=[place(step, value) for step, value in printed if math.isfinite(value)],
        last=last,
        words=f"{lines[0].series}, {title}: {start.value} at step {first}, {last.value} at step {end}",
    )
