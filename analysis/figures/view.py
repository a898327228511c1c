"""Axes of drawings: their range, and for SVG in a page their pixels and ticks.

The range contains all points, and the intervals that do not compress the points into a line.

An interval over two seeds, or of a ratio with a denominator near zero, can be a hundred times as wide as the range of
the points. Such an interval is cut at the end of the axis and marked by an arrow; data files contain its ends.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import pandas as pd

INTERVAL_REACH = 1.5
"""Distance that intervals may reach beyond the points, in ranges of the points: points get a quarter of an axis or
more, unless half of the intervals reach further."""
BELOW = 3
"""On a logarithmic axis, an interval with a lower end of 0 or less is cut at the smallest point over this factor."""
ROUNDING = 1e-9
"""Relative tolerance for equal numbers."""


class View(NamedTuple):
    """Range of an axis at which intervals are cut; infinite ends cut none."""

    low: float
    high: float


EVERYTHING = View(-math.inf, math.inf)


def view(points: Iterable[float], lows: Iterable[float], highs: Iterable[float], log: bool = False) -> View:
    """The range that contains all points and the moderate ends of intervals.

    An end is moderate if its distance from the points is at most `INTERVAL_REACH` times their range, or at most that of
    half of the intervals go: these are always whole.

    Args:
        points: values that must be visible: means, the paper's values, thresholds, the foot of bars; NaN is ignored.
        lows: lower ends of intervals; NaN is ignored.
        highs: upper ends, in the same order.
        log: whether the axis is logarithmic, which cannot show numbers of 0 or less.
    """
    shown = np.asarray(list(points), float)
    shown = shown[np.isfinite(shown) & (shown > (0 if log else -math.inf))]
    if not shown.size:
        return EVERYTHING
    ends = np.column_stack([np.asarray(list(lows), float), np.asarray(list(highs), float)])
    ends = ends[np.isfinite(ends).all(axis=1)]
    if log:
        # An interval that ends at or below 0 cannot be on a logarithmic axis; a lower end there is cut.
        ends = ends[ends[:, 1] > 0]
        ends[:, 0] = np.maximum(ends[:, 0], shown.min() / BELOW)
    # distances are measured in the units of the axis
    scaled, scaled_ends = (np.log(each) if log else each for each in (shown, ends))
    beyond = np.maximum(scaled.min() - scaled_ends[:, 0], scaled_ends[:, 1] - scaled.max())
    reach = max(INTERVAL_REACH * np.ptp(scaled), float(np.median(beyond)) if len(ends) else 0.0)
    # Rounding must not cut an end that is exactly as far as is allowed.
    reach += ROUNDING * (reach + np.abs(scaled).max())
    near = ends[(scaled_ends >= scaled.min() - reach) & (scaled_ends <= scaled.max() + reach)]
    within = np.concatenate([shown, near])
    return View(float(within.min()), float(within.max()))


def cut_points(line: pd.DataFrame, shown: View) -> list[tuple[int, str]]:
    """Rows of a line whose interval (`low`, `high`) exceeds the axis: index of the row, and the end.

    Of neighbouring rows that are cut at the same end only the one with the largest excess is returned.
    """
    found = []
    for end, beyond in (("low", shown.low - line["low"]), ("high", line["high"] - shown.high)):
        cut = (beyond > 0).to_numpy()
        # Rows that are not cut raise the number, so that neighbouring cut rows share one.
        runs = pd.Series(beyond.to_numpy()).where(cut).groupby(np.cumsum(~cut))
        found += [(int(run.idxmax()), end) for _, run in runs if run.notna().any()]
    return sorted(found)


@dataclass(frozen=True)
class Axis:
    """Map numbers from `low` to `high` to pixels from `first` to `last`; numbers outside map to the ends."""

    low: float
    high: float
    first: float
    last: float
    log: bool = False

    @classmethod
    def around(cls, values: Sequence[float], margin: float, first: float, last: float, log: bool = False) -> "Axis":
        """An axis over finite numbers with a margin at each end, as a share of the range."""
        low, high = min(values), max(values)
        if log:
            # A single value has no range of which the margin could be a share.
            factor = max((high / low) ** margin, 1.05)
            return cls(low / factor, high * factor, first, last, log)
        free = margin * (high - low) or margin * max(abs(high), 1.0)
        return cls(low - free, high + free, first, last)

    def __call__(self, value: float) -> float:
        """Pixel of a number, rounded to a tenth; the middle if the axis has a single number."""
        if self.low == self.high:
            return round((self.first + self.last) / 2, 1)
        # The logarithm of 0 or less would be no pixel; such a number is at the lower end.
        x, *ends = np.log([max(value, 1e-9), self.low, self.high]) if self.log else (value, self.low, self.high)
        return round(float(np.interp(x, ends, (self.first, self.last))), 1)


def ticks(low: float, high: float, whole: bool = False, most: int = 5) -> list[float]:
    """At most `most` round numbers from `low` to `high`; only integers if `whole`."""
    power = 10 ** math.floor(math.log10((high - low) / most))
    power = max(power, 1) if whole else power
    every = next(step * power for step in (1, 2, 5, 10) if (high - low) / (step * power) < most)
    # Rounding must not drop a tick at an end of the axis.
    return [every * i for i in range(math.ceil(low / every - 1e-9), math.floor(high / every + 1e-9) + 1)]
