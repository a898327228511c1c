"""Estimates over seeds. Runs are paired by seed wherever two cells are compared."""

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from scipy import stats

PAIRINGS: dict[str, Callable[[float, float], float]] = {
    "ratio": lambda value, baseline: value / baseline if baseline else math.nan,
    "speedup": lambda value, baseline: baseline / value if value else math.inf,
    "difference": lambda value, baseline: value - baseline,
}
NEUTRAL = {"ratio": 1.0, "speedup": 1.0, "difference": 0.0}
"""Value of a relative quantity when a cell equals its baseline."""


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
        values: of those runs, in their order.
    """

    mean: float
    shown: Interval
    tested: Interval
    seeds: tuple[int, ...]
    values: tuple[float, ...] = field(default=(), compare=False, repr=False)

    @property
    def iqm(self) -> float:
        """Interquartile mean: a quarter of the values is cut off at each end; the plain mean with fewer than four."""
        return float(stats.trim_mean(self.values, 0.25)) if self.values else math.nan

    def p_value(self, against: float) -> float:
        """Two-sided one-sample t-test of the values' mean against a number, paired if they are paired values.

        Returns:
            NaN with fewer than two seeds; with equal values, which leave no variance to test, 1 or 0.
        """
        if len(self.values) < 2 or not np.isfinite(self.values).all():
            return math.nan
        if np.ptp(self.values) == 0:
            return float(self.values[0] == against)
        return float(stats.ttest_1samp(self.values, against).pvalue)


def estimate(values: Mapping[int, float]) -> Estimate:
    """Mean and intervals over seeds (scipy; 9,999 bootstrap resamples with a fixed seed)."""
    seeds = tuple(sorted(seed for seed, value in values.items() if not math.isnan(value)))
    array = np.array([values[seed] for seed in seeds])
    if not len(array):
        return Estimate(math.nan, NONE, NONE, ())
    mean = float(array.mean())
    if len(array) == 1 or not np.isfinite(array).all():
        return Estimate(mean, NONE, NONE, seeds, tuple(array.tolist()))
    if np.ptp(array) == 0:
        return Estimate(mean, Interval(mean, mean), Interval(mean, mean), seeds, tuple(array.tolist()))
    resampled = stats.bootstrap(
        (array,), np.mean, method="percentile", rng=np.random.default_rng(0)
    ).confidence_interval
    student = stats.t.interval(0.95, len(array) - 1, loc=mean, scale=stats.sem(array))
    shown, tested = Interval(*map(float, resampled)), Interval(*map(float, student))
    return Estimate(mean, shown, tested, seeds, tuple(array.tolist()))


def corrected(p_values: Sequence[float]) -> list[float]:
    """p-values of a family of comparisons after Benjamini and Hochberg's correction of the false discovery rate.

    Those that are NaN stay so and do not count as comparisons.
    """
    array = np.array(p_values, dtype=float)
    tested = ~np.isnan(array)
    if tested.any():
        array[tested] = stats.false_discovery_control(array[tested])
    return [float(p) for p in array]


def noise_floor(benchmarks: Mapping[str, tuple[float, int]]) -> float:
    """Standard error of the mean of some benchmarks' accuracies, points, that sampling alone causes.

    Args:
        benchmarks: name to accuracy in percent and number of graded responses n; each is k of n, so binomial.
    """
    shares = [(accuracy / 100, n) for accuracy, n in benchmarks.values()]
    if not shares:
        return math.nan
    return 100 * math.sqrt(sum(share * (1 - share) / n for share, n in shares)) / len(shares)


def paired(values: Mapping[int, float], baseline: Mapping[int, float], relative: str) -> dict[int, float]:
    """The relative quantity of each seed that both have.

    Args:
        relative: `ratio`, `speedup` or `difference`.
    """
    return {seed: PAIRINGS[relative](values[seed], baseline[seed]) for seed in values if seed in baseline}


def consecutive(sequences: Sequence[Mapping[int, float]]) -> list[Estimate]:
    """Paired differences between neighbours of a sequence of cells."""
    return [estimate(paired(later, earlier, "difference")) for earlier, later in itertools.pairwise(sequences)]
