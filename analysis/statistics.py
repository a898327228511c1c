"""Estimates over seeds. Runs are paired by seed wherever two cells are compared."""

import itertools
import math
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
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
        interval: 95 % Student interval over seeds, which is shown and on which verdicts rest.
        bootstrap: 95 % percentile bootstrap over seeds, for the CSV files. With three or four seeds it is the range of
            the values, which misses the mean of the distribution far more often than one time in twenty.
        seeds: which runs it rests on.
        values: of those runs, in their order.
    """

    mean: float
    interval: Interval
    bootstrap: Interval
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
    interval, bootstrap = Interval(*map(float, student)), Interval(*map(float, resampled))
    return Estimate(mean, interval, bootstrap, seeds, tuple(array.tolist()))


def corrected(p_values: Sequence[float]) -> list[float]:
    """p-values of a family of comparisons after Benjamini and Hochberg's correction of the false discovery rate.

    Those that are NaN stay so and do not count as comparisons.
    """
    array = np.array(p_values, dtype=float)
    tested = ~np.isnan(array)
    if tested.any():
        array[tested] = stats.false_discovery_control(array[tested])
    return [float(p) for p in array]


class Family:
    """Comparisons that are corrected together, each once however often it is shown.

    Two comparisons with the same values and the same threshold are one: they are known by ten digits of their values.

    Args:
        comparisons: values by seed, and the threshold that their mean is tested against.
    """

    def __init__(self, comparisons: Iterable[tuple[Mapping[int, float], float]]) -> None:
        found = {_identity(*each): estimate(each[0]).p_value(each[1]) for each in comparisons}
        tested = {key: p for key, p in found.items() if not math.isnan(p)}
        self._corrected = dict(zip(tested, corrected(list(tested.values())), strict=True))

    def __len__(self) -> int:
        return len(self._corrected)

    def corrected(self, values: Mapping[int, float], threshold: float) -> float:
        """The corrected p-value of a comparison; NaN if it cannot be tested or is not in the family."""
        return self._corrected.get(_identity(values, threshold), math.nan)


def _identity(values: Mapping[int, float], threshold: float) -> Hashable:
    return tuple((seed, f"{values[seed]:.10g}") for seed in sorted(values)), f"{threshold:.10g}"


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
