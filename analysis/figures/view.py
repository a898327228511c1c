"""The range of an axis: all points, and of the intervals those that do not press the points into a line.

An interval over two seeds, or of a ratio whose denominator is near zero, may be a hundred times as wide as the points
are apart. It is cut at the axis's end then, and an arrow says so; files of data have its ends.
"""

import math
from collections.abc import Iterable
from typing import NamedTuple

import numpy as np
import pandas as pd

ROOM = 1.5
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

    An end is moderate if it is no further from the points than `ROOM` times what they are apart, or than half of the
    intervals go: these are always whole.

    Args:
        points: what must be seen: means, the paper's values, thresholds, the foot of bars; unknown ones are left out.
        lows: lower ends of intervals; unknown ones are left out.
        highs: their upper ends, in the same order.
        log: whether the axis is logarithmic, which has no place for numbers that are not positive.
    """
    shown = _finite(points)
    shown = shown[shown > 0] if log else shown
    if not shown.size:
        return EVERYTHING
    ends = np.column_stack([np.asarray(list(lows), float), np.asarray(list(highs), float)])
    ends = ends[np.isfinite(ends).all(axis=1)]
    if log:
        ends = ends[ends[:, 1] > 0]
        ends[:, 0] = np.maximum(ends[:, 0], shown.min() / BELOW)
    places, placed = (np.log(each) if log else each for each in (shown, ends))
    beyond = np.maximum(places.min() - placed[:, 0], placed[:, 1] - places.max())
    reach = max(ROOM * np.ptp(places), float(np.median(beyond)) if len(ends) else 0.0)
    reach += ROUNDING * (reach + np.abs(places).max())
    near = ends[(placed >= places.min() - reach) & (placed <= places.max() + reach)]
    within = np.concatenate([shown, near])
    return View(float(within.min()), float(within.max()))


def _finite(values: Iterable[float]) -> np.ndarray:
    found = np.asarray(list(values), float)
    return found[np.isfinite(found)]


def cut_points(line: pd.DataFrame, shown: View) -> list[tuple[int, str]]:
    """Where a line's intervals go on beyond the axis: position of a row and `low` or `high`.

    Of neighbours that are cut at the same end, the one that goes on furthest stands for all.

    Args:
        line: rows with `low` and `high`, in order.
        shown: what the axis shows.
    """
    found = []
    for end, beyond in (("low", shown.low - line["low"]), ("high", line["high"] - shown.high)):
        cut = (beyond > 0).to_numpy()
        runs = pd.Series(beyond.to_numpy()).where(cut).groupby(np.cumsum(~cut))
        found += [(int(run.idxmax()), end) for _, run in runs if run.notna().any()]
    return sorted(found)
