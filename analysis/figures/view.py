"""Axes of drawings: their range, and for SVG in a page their pixels and ticks.

The range holds all points, and of the intervals those that do not press the points into a line.

An interval over two seeds, or of a ratio whose denominator is near zero, may be a hundred times as wide as the points
are apart. It is cut at the axis's end then, and an arrow says so; files of data have its ends.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import pandas as pd

INTERVAL_REACH = 1.5
"""Of an axis, points take a quarter or more, unless half of the intervals go further than that leaves."""
BELOW = 3
"""On a logarithmic axis, an interval whose end is not positive reaches down to the smallest point by this factor."""
ROUNDING = 1e-9
"""Share of an axis that two equal numbers may be apart."""


class View(NamedTuple):
    """Ends of what an axis shows of its intervals; infinite ends cut none."""

    low: float
    high: float


EVERYTHING = View(-math.inf, math.inf)


def view(points: Iterable[float], lows: Iterable[float], highs: Iterable[float], log: bool = False) -> View:
    """The range that holds all points and the moderate ends of intervals.

    An end is moderate if it is no further from the points than `INTERVAL_REACH` times what they are apart, or than half
    of the intervals go: these are always whole.

    Args:
        points: what must be seen: means, the paper's values, thresholds, the foot of bars; unknown ones are left out.
        lows: lower ends of intervals; unknown ones are left out.
        highs: their upper ends, in the same order.
        log: whether the axis is logarithmic, which has no place for numbers that are not positive.
    """
    shown = np.asarray(list(points), float)
    shown = shown[np.isfinite(shown) & (shown > (0 if log else -math.inf))]
    if not shown.size:
        return EVERYTHING
    ends = np.column_stack([np.asarray(list(lows), float), np.asarray(list(highs), float)])
    ends = ends[np.isfinite(ends).all(axis=1)]
    if log:
        ends = ends[ends[:, 1] > 0]
        ends[:, 0] = np.maximum(ends[:, 0], shown.min() / BELOW)
    places, placed = (np.log(each) if log else each for each in (shown, ends))
    beyond = np.maximum(places.min() - placed[:, 0], placed[:, 1] - places.max())
    reach = max(INTERVAL_REACH * np.ptp(places), float(np.median(beyond)) if len(ends) else 0.0)
    reach += ROUNDING * (reach + np.abs(places).max())
    near = ends[(placed >= places.min() - reach) & (placed <= places.max() + reach)]
    within = np.concatenate([shown, near])
    return View(float(within.min()), float(within.max()))


def cut_points(line: pd.DataFrame, shown: View) -> list[tuple[int, str]]:
    """Where a line's intervals (`low` and `high`) go on beyond the axis: position of a row, and the end.

    Of neighbours that are cut at the same end, the one that goes on furthest stands for all.
    """
    found = []
    for end, beyond in (("low", shown.low - line["low"]), ("high", line["high"] - shown.high)):
        cut = (beyond > 0).to_numpy()
        runs = pd.Series(beyond.to_numpy()).where(cut).groupby(np.cumsum(~cut))
        found += [(int(run.idxmax()), end) for _, run in runs if run.notna().any()]
    return sorted(found)


@dataclass(frozen=True)
class Axis:
    """Numbers from `low` to `high` as pixels from `first` to `last`; a number beyond an end has that end's pixel."""

    low: float
    high: float
    first: float
    last: float
    log: bool = False

    @classmethod
    def around(cls, values: Sequence[float], room: float, first: float, last: float, log: bool = False) -> "Axis":
        """An axis of all these finite numbers, of which a share `room` stays free at each end."""
        low, high = min(values), max(values)
        if log:
            factor = max((high / low) ** room, 1.05)
            return cls(low / factor, high * factor, first, last, log)
        free = room * (high - low) or room * max(abs(high), 1.0)
        return cls(low - free, high + free, first, last)

    def __call__(self, value: float) -> float:
        """Pixel of a number, to a tenth; the middle where the axis has one number alone."""
        if self.low == self.high:
            return round((self.first + self.last) / 2, 1)
        x, *ends = np.log([max(value, 1e-9), self.low, self.high]) if self.log else (value, self.low, self.high)
        return round(float(np.interp(x, ends, (self.first, self.last))), 1)


def ticks(low: float, high: float, whole: bool = False, most: int = 5) -> list[float]:
    """At most `most` round numbers from `low` to `high`, whole ones if asked for."""
    power = 10 ** math.floor(math.log10((high - low) / most))
    power = max(power, 1) if whole else power
    every = next(step * power for step in (1, 2, 5, 10) if (high - low) / (step * power) < most)
    return [every * i for i in range(math.ceil(low / every - 1e-9), math.floor(high / every + 1e-9) + 1)]
