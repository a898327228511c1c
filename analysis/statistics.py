"""Estimates over seeds. Runs are paired by seed wherever two cells are compared."""

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from scipy import stats

PAIRINGS: dict[str, Callable[[float, float], float]] = {
    "ratio": lambda value, baseline: value / baseline if baseline else math.nan,
    "speedup": lambda value, baseline: baseline / value if value else math.inf,
    "difference": lambda value, baseline: value - baseline,
}
NEUTRAL = {"ratio": 1.0, "speedup": 1.0, "difference": 0.0}
"""What a relative quantity is when a cell equals its baseline."""


@dataclass(frozen=True)
class Interval:
    """A range of values; both ends are NaN where too few seeds allow none."""

    low: float
    high: float

    def __contains__(self, value: float) -> bool:
        return self.low <= value <= self.high


NONE = Interval(math.nan, math.nan)


@dataclass(frozen=True)
class Estimate:
    """Mean over seeds.

    Attributes:
        mean: NaN if there is no run.
        shown: 95 % percentile bootstrap over seeds, for tables and figures.
        tested: 95 % Student interval over seeds, on which verdicts rest: with three or four seeds the bootstrap is
            the range of the values, which misses the mean of the distribution far more often than one time in twenty.
        seeds: which runs it rests on.
    """

    mean: float
    shown: Interval
    tested: Interval
    seeds: tuple[int, ...]


def estimate(values: Mapping[int, float]) -> Estimate:
    """Mean and intervals over seeds (scipy; 9,999 bootstrap resamples with a fixed seed)."""
    seeds = tuple(sorted(seed for seed, value in values.items() if not math.isnan(value)))
    array = np.array([values[seed] for seed in seeds])
    if not len(array):
        return Estimate(math.nan, NONE, NONE, ())
    mean = float(array.mean())
    if len(array) == 1 or not np.isfinite(array).all():
        return Estimate(mean, NONE, NONE, seeds)
    if np.ptp(array) == 0:
        return Estimate(mean, Interval(mean, mean), Interval(mean, mean), seeds)
    resampled = stats.bootstrap(
        (array,), np.mean, method="percentile", rng=np.random.default_rng(0)
    ).confidence_interval
    student = stats.t.interval(0.95, len(array) - 1, loc=mean, scale=stats.sem(array))
    return Estimate(mean, Interval(*map(float, resampled)), Interval(*map(float, student)), seeds)


def paired(values: Mapping[int, float], baseline: Mapping[int, float], relative: str) -> dict[int, float]:
    """The relative quantity of each seed that both have.

    Args:
        relative: `ratio`, `speedup` or `difference`.
    """
    return {seed: PAIRINGS[relative](values[seed], baseline[seed]) for seed in values if seed in baseline}


def consecutive(sequences: Sequence[Mapping[int, float]]) -> list[Estimate]:
    """Paired differences between neighbours of a sequence of cells."""
    return [estimate(paired(later, earlier, "difference")) for earlier, later in itertools.pairwise(sequences)]
