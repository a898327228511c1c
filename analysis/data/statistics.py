"""Estimates over seeds. Runs are paired by seed wherever two cells are compared."""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path

import numpy as np
import pandas as pd
from scipy import stats

from redraft.analysis.data.sequential import Looks, nominal_level, sequential_p
from redraft.data_dictionary import write_parquet
from redraft.files import read_parquet

PAIRINGS: dict[str, Callable[[float, float], float]] = {
    # Nothing is a multiple of 0, and NaN counts as missing. A time of 0, of a target that the initial policy has
    # reached, is an infinite speedup.
    "ratio": lambda value, baseline: value / baseline if baseline else math.nan,
    "speedup": lambda value, baseline: baseline / value if value else math.inf,
    "difference": lambda value, baseline: value - baseline,
}
LEVEL = 0.05
"""Level of significance of all verdicts; intervals cover 1 - LEVEL. Texts say 95 %."""
RESAMPLES = 9999
"""Resamples of a bootstrap."""
ROUNDING = 1e-12
"""Largest error of rounding, relative to numbers above 1 and absolute for smaller ones."""
FAMILY = ("comparison", "p", "p_corrected", "primary")
"""Columns of a family's file."""
NEUTRAL = {"ratio": 1.0, "speedup": 1.0, "difference": 0.0}
"""Value of a relative quantity when a cell equals its baseline."""
RATIOS = frozenset({"ratio", "speedup"})
"""Relations whose values are ratios, which are estimated and tested by their logarithms."""


@dataclass(frozen=True)
class Interval:
    """A range of values; both ends are NaN where too few seeds allow none."""

    low: float
    high: float

    def __contains__(self, value: float) -> bool:
        """Up to rounding: the interval of equal values is one number, and 0.1 + 0.2 is not quite 0.3."""
        tolerance = ROUNDING * max(1.0, abs(value)) if math.isfinite(value) else 0.0
        return self.low - tolerance <= value <= self.high + tolerance


NONE = Interval(math.nan, math.nan)


Comparison = tuple[Mapping[int, float], float, bool]
"""Values by seed, the number that their mean is tested against, and whether they are ratios."""


class Blocks(dict[int, int]):
    """Seed to its block, and the looks of a sequential campaign.

    Runs of a block share an initial policy and problems, so that only blocks are independent. A seed that is not there
    is a block of its own.
    """

    def __init__(self, blocks: Mapping[int, int] | Iterable[tuple[int, int]] = (), looks: Looks = ()) -> None:
        super().__init__(blocks)
        self.looks = looks


NO_BLOCKS = Blocks()


@dataclass(frozen=True)
class Estimate:
    """Mean over seeds, or over the means of blocks of them; of ratios every mean is geometric.

    So the interval of a ratio is positive, and a ratio and its inverse have the same p-value. Ratios of which one is
    not positive have no logarithms: their mean is the plain one, without interval and test unless all are equal.

    Attributes:
        mean: NaN if there is no run.
        interval: 95 % Student interval over blocks, which is shown and on which verdicts rest. That of a sequential
            campaign is wider, so that the intervals of all looks together contain the true mean in 95 % of campaigns.
        seeds: which runs it rests on.
        values: of those runs, in their order.
        blocks: the same values by block.
        units: means of the blocks, on which tests rest; of ratios, of their logarithms.
        log: whether the values are ratios.
        looks: those of a sequential campaign.
    """

    mean: float
    interval: Interval
    seeds: tuple[int, ...]
    values: tuple[float, ...] = field(default=(), compare=False, repr=False)
    blocks: tuple[tuple[float, ...], ...] = field(default=(), compare=False, repr=False)
    units: tuple[float, ...] = field(default=(), compare=False, repr=False)
    log: bool = field(default=False, compare=False, repr=False)
    looks: Looks = field(default=(), compare=False, repr=False)

    @cached_property
    def bootstrap(self) -> Interval:
        """95 % percentile bootstrap of blocks and of the seeds in them, for the CSV files.

        There are 9,999 resamples with a fixed seed. With three or four blocks it is hardly more than the range of their
        means, which misses the mean of the distribution far more often than one time in twenty.
        """
        if not self.testable:
            return NONE
        found = _two_level([np.log(part) if self.has_logs else np.array(part) for part in self.blocks])
        return _exp(found) if self.has_logs else found

    @property
    def testable(self) -> bool:
        """True if there are two different blocks or more, none is infinite, and ratios are positive or equal."""
        # A ratio of 0 or below has no logarithm, and Student's interval of plain ratios may reach below 0.
        has_scale = not self.log or self.has_logs or min(self.values, default=0) == max(self.values, default=0)
        # Infinite is a target that a seed never reached: it has no variance.
        finite = len(self.units) > 1 and bool(np.isfinite(self.units).all())
        return finite and has_scale and not self.is_constant_pair

    @property
    def is_constant_pair(self) -> bool:
        """True if there are two blocks with equal means, up to `ROUNDING`.

        A t-test would call such a mean certain, but accuracies and other shares of few answers are equal by chance in 2
        to 7 % of comparisons. With three blocks it is below 0.6 % (docs/metrics.md).
        """
        return len(self.units) == 2 and bool(np.ptp(self.units) <= ROUNDING * max(1.0, *map(abs, self.units)))

    @property
    def has_logs(self) -> bool:
        """True if the values are different ratios above 0, whose units are means of logarithms."""
        return self.log and max(self.values) > min(self.values) > 0

    @property
    def iqm(self) -> float:
        """Interquartile mean: a quarter of the values is cut off at each end; the plain mean with fewer than four."""
        if not self.values:
            return math.nan
        if self.has_logs:
            return math.exp(stats.trim_mean(np.log(self.values), 0.25))
        return float(stats.trim_mean(self.values, 0.25))

    def p_value(self, against: float) -> float:
        """Two-sided one-sample t-test of the blocks' mean against a number, paired if they are paired values.

        In a sequential campaign it is the smallest p-value of the looks so far, as a sequential one; so it may be that
        of an earlier look than the mean and the interval.

        Returns:
            NaN unless `testable`, and before the first look; 1 or 0 for three or more equal means, which leave no
            variance to test. Both are up to `ROUNDING`.
        """
        if not self.testable:
            return math.nan
        threshold = math.log(against) if self.has_logs else against
        found = []
        for n in self.looks or (len(self.units),):
            units = self.units[:n]
            if len(units) < n:
                break
            # Rounding must not decide: 16.1 - 15.1 is above 1, and the t statistic of equal values is infinite.
            tolerance = ROUNDING * max(1.0, abs(threshold), *map(abs, units))
            if np.ptp(units) <= tolerance:
                # Two equal blocks are equal by chance too often (`is_constant_pair`).
                p = float(n == 2 or abs(units[0] - threshold) <= tolerance)
            else:
                p = float(stats.ttest_1samp(units, threshold).pvalue)
            # A look whose mean is on the other side does not speak for the side of all blocks.
            same_side = (np.mean(units) > threshold) == (np.mean(self.units) > threshold)
            found.append(p if same_side else 1.0)
        return sequential_p(min(found), self.looks) if found else math.nan


def estimate(values: Mapping[int, float], blocks: Mapping[int, int] = NO_BLOCKS, log: bool = False) -> Estimate:
    """Mean of values by seed, of which NaN counts as missing, and its interval over blocks; `log` for ratios.

    In a sequential campaign blocks after the last look that was reached do not count yet.
    """
    looks = blocks.looks if isinstance(blocks, Blocks) else ()
    seeds = tuple(sorted(seed for seed, value in values.items() if not math.isnan(value)))
    if not seeds:
        return Estimate(math.nan, NONE, ())
    inside: dict[int, list[float]] = {}
    for seed in seeds:
        # Blocks weigh equally, however many of their seeds are finished: only blocks are independent.
        inside.setdefault(blocks.get(seed, seed), []).append(values[seed])
    if reached := [n for n in looks if n <= len(inside)]:
        counting = list(inside)[: reached[-1]]
        inside = {block: inside[block] for block in counting}
        seeds = tuple(seed for seed in seeds if blocks.get(seed, seed) in inside)
    of_seeds, of_blocks = tuple(values[seed] for seed in seeds), tuple(map(tuple, inside.values()))
    # Equal ratios need no logarithms, and keep their exact value: exp(log 3) is 3.0000000000000004.
    has_logs = log and max(of_seeds) > min(of_seeds) > 0
    scaled = [np.log(part) if has_logs else np.array(part) for part in of_blocks]
    units = np.array([sum(part) / len(part) for part in scaled])
    mean = float(units.mean())
    shown = math.exp(mean) if has_logs else mean
    found = Estimate(shown, NONE, seeds, of_seeds, of_blocks, tuple(units.tolist()), log, looks)
    if not found.testable:
        return found
    low, high = mean, mean
    # SciPy's interval is NaN at a scale of 0.
    if np.ptp(units):
        # Student and not normal quantiles or a bootstrap: with five blocks it contains the true value in 95.5 % of
        # simulated campaigns, the bootstrap in 85.7 % (docs/metrics.md).
        confidence = 1 - nominal_level(LEVEL, looks)
        low, high = map(float, stats.t.interval(confidence, len(units) - 1, loc=mean, scale=stats.sem(units)))
    return replace(found, interval=_exp(Interval(low, high)) if has_logs else Interval(low, high))


KEPT = ("gain_kept", "gain_kept_low", "gain_kept_high", "baseline_gain", "gain_kept_reported")
"""Columns of tables with the fields of `GainKept`."""


@dataclass(frozen=True)
class GainKept:
    """Gain of a cell over its initial policy, as a share of the gain of its baseline over its own.

    This compares between scales of training: a loss of 5.7 points means one thing where training the baseline gained 50
    points, and another where it gained 7.

    Attributes:
        share: ratio of the mean gains; NaN if the baseline has none.
        low: lower end of Fieller's 95 % interval over blocks. Both ends are NaN where the baseline's gain does not
            differ significantly from 0, since then the interval is unbounded.
        high: upper end.
        gain: mean gain of the baseline, points.
        reported: the paper's share; NaN where it prints too little.
    """

    share: float
    low: float
    high: float
    gain: float
    reported: float = math.nan

    @property
    def text(self) -> str:
        """`88 % [75, 101] of the 50.1 points that the baseline gained (paper 104 %)`."""
        gained = f"the {self.gain:.1f} points that the baseline gained"
        paper = "" if math.isnan(self.reported) else f" (paper {100 * self.reported:.0f} %)"
        if self.gain <= 0:
            return f"no share of a gain: the baseline changed by {self.gain:.1f} points{paper}"
        if math.isnan(self.low):
            return f"an unknown share of {gained}, which may be chance{paper}"
        return f"{100 * self.share:.0f} % [{100 * self.low:.0f}, {100 * self.high:.0f}] of {gained}{paper}"


def mean_ratio(
    values: Mapping[int, float], others: Mapping[int, float], blocks: Mapping[int, int] = NO_BLOCKS
) -> tuple[float, Interval, float]:
    """Ratio of two paired means over blocks, its 95 % interval by Fieller, and the mean of `others`.

    Fieller's interval contains each ratio ρ for which a t-test does not reject that the mean of `values - ρ others` is
    0. It needs no ratio of single seeds, whose divisor may be nearly 0. Where the mean of `others` does not differ
    significantly from 0, it is unbounded, and both ends are NaN.

    Args:
        values: numerators by seed.
        others: denominators by seed.
        blocks: of the seeds.
    """
    # Of the seeds that have both.
    both = [seed for seed in values if math.isfinite(values[seed]) and math.isfinite(others.get(seed, math.nan))]
    own, other = (np.array(estimate({s: part[s] for s in both}, blocks).units) for part in (values, others))
    if not both:
        return math.nan, NONE, math.nan
    mean, divisor, count = float(own.mean()), float(other.mean()), len(own)
    share = mean / divisor if divisor else math.nan
    # Two equal blocks have no variance that a test could use (`Estimate.is_constant_pair`).
    if count < 2 or any(
        estimate(dict(enumerate(units.tolist()))).is_constant_pair for units in (other, own - share * other)
    ):
        return share, NONE, divisor
    looks = blocks.looks if isinstance(blocks, Blocks) else ()
    limit = stats.t.ppf(1 - nominal_level(LEVEL, looks) / 2, count - 1) ** 2
    (own_variance, covariance), (_, variance) = np.cov(own, other) / count
    # The quadratic in ρ of which the interval's ends are the roots.
    square, linear, constant = (
        divisor**2 - limit * variance,
        mean * divisor - limit * covariance,
        mean**2 - limit * own_variance,
    )
    if square <= 0:
        return share, NONE, divisor
    # Never below 0 where the square's factor is above it, but for rounding.
    half = math.sqrt(max(0.0, linear**2 - square * constant))
    return share, Interval(float((linear - half) / square), float((linear + half) / square)), divisor


def _exp(interval: Interval) -> Interval:
    # Two very different ratios have an upper end above the largest float, which is infinity.
    with np.errstate(over="ignore"):
        return Interval(float(np.exp(interval.low)), float(np.exp(interval.high)))


def _two_level(blocks: list[np.ndarray]) -> Interval:
    """Percentile bootstrap of the mean of blocks' means: blocks are resampled, and in each block its values."""
    # A fixed seed: the same runs give the same file.
    rng = np.random.default_rng(0)
    chosen = rng.integers(len(blocks), size=(RESAMPLES, len(blocks)))
    means = np.empty(chosen.shape)
    for i, part in enumerate(blocks):
        here = chosen == i
        # Each time a block is chosen its seeds are resampled, so that the variance within blocks counts too.
        means[here] = rng.choice(part, (int(here.sum()), len(part))).mean(axis=1)
    low, high = np.quantile(means.mean(axis=1), (LEVEL / 2, 1 - LEVEL / 2))
    return Interval(float(low), float(high))


def corrected(p_values: Sequence[float] | np.ndarray) -> list[float]:
    """p-values of a family of comparisons after Benjamini and Hochberg's correction of the false discovery rate.

    Those that are NaN stay so and do not count as comparisons.
    """
    # Not Holm: it bounds the probability of a single false verdict, which costs power, and few seeds have little. This
    # bounds the expected share of false verdicts among those that assert an effect (docs/metrics.md).
    array = np.array(p_values, dtype=float)
    tested = ~np.isnan(array)
    if tested.any():
        array[tested] = stats.false_discovery_control(array[tested])
    return [float(p) for p in array]


class Family:
    """Comparisons that are corrected together, each once however often it is shown.

    Two comparisons with the same values, threshold and kind are one: they are known by ten digits of their values.
    """

    _p: dict[str, float]

    def __init__(
        self, comparisons: Iterable[Comparison], blocks: Mapping[int, int] = NO_BLOCKS, without: "Family | None" = None
    ) -> None:
        """Correct comparisons, apart from those that another family has."""
        others: Mapping[str, float] = {} if without is None else without._p
        found = {
            key: estimate(values, blocks, log).p_value(threshold)
            for values, threshold, log in comparisons
            if (key := _identity(values, threshold, log)) not in others
        }
        # What cannot be tested must not count: more comparisons weaken the correction of all.
        self._p = {key: p for key, p in found.items() if not math.isnan(p)}

    def __len__(self) -> int:
        return len(self._p)

    @cached_property
    def _corrected(self) -> dict[str, float]:
        return dict(zip(self._p, corrected(list(self._p.values())), strict=True))

    def level(self, values: Mapping[int, float], threshold: float, log: bool = False) -> float:
        """Largest p-value with which a comparison is significant after the correction, given those of the others.

        One that is not in the family counts as a further member.
        """
        key = _identity(values, threshold, log)
        others = np.sort([p for other, p in self._p.items() if other != key])
        count = len(others) + 1
        # By Benjamini and Hochberg's steps: rank j is reached if j - 1 others are at or below its limit.
        limits = LEVEL * np.arange(1, count + 1) / count
        reached = np.searchsorted(others, limits, side="right") >= np.arange(count)
        return float(limits[reached].max())

    def corrected(self, values: Mapping[int, float], threshold: float, log: bool = False) -> float:
        """The corrected p-value of a comparison; NaN if it cannot be tested or is not in the family."""
        return self._corrected.get(_identity(values, threshold, log), math.nan)


class Families:
    """The comparisons of a paper's report in two families that are corrected apart.

    The primary one has the headline numbers and the claims that are declared `primary`. Whatever else is compared does
    not change their verdicts.
    """

    def __init__(
        self,
        primary: Iterable[Comparison] = (),
        other: Iterable[Comparison] = (),
        blocks: Mapping[int, int] = NO_BLOCKS,
    ) -> None:
        self.primary = Family(primary, blocks)
        self.other = Family(other, blocks, without=self.primary)

    def __len__(self) -> int:
        return len(self.primary) + len(self.other)

    def of(self, values: Mapping[int, float], threshold: float, log: bool = False, *, primary: bool = False) -> Family:
        """The family of a comparison; of one that is in neither, such as of uneven times, that which `primary` says."""
        key = _identity(values, threshold, log)
        return self.primary if key in self.primary._p or (primary and key not in self.other._p) else self.other

    def save(self, file: Path) -> None:
        """Write the p-value of each comparison, without and with correction."""
        both = ((self.primary, True), (self.other, False))
        rows = [(key, p, family._corrected[key], primary) for family, primary in both for key, p in family._p.items()]
        write_parquet(pd.DataFrame(rows, columns=FAMILY).astype({FAMILY[-1]: bool}), file, "family")

    @classmethod
    def load(cls, file: Path) -> "Families":
        """Read what `save` wrote."""
        families = cls()
        for key, p, _, primary in read_parquet(file, FAMILY)[list(FAMILY)].itertuples(index=False):
            (families.primary if primary else families.other)._p[key] = p
        return families


def _identity(values: Mapping[int, float], threshold: float, log: bool) -> str:
    # Ten digits: tables and claims compute the same comparison in other orders, which changes the last bits.
    # A missing value is none of the comparison's, whether it is left out or NaN.
    by_seed = ", ".join(f"{seed}: {values[seed]:.10g}" for seed in sorted(values) if not math.isnan(values[seed]))
    return f"{by_seed} against {threshold:.10g}" + " as ratios" * log


def noise_floor(benchmarks: Mapping[str, tuple[float, int]]) -> float:
    """Standard error of the mean of some benchmarks' accuracies, points, that sampling alone causes.

    Each has an accuracy in percent and a number of graded responses n; it is k of n, so binomial.
    """
    shares = [(accuracy / 100, n) for accuracy, n in benchmarks.values()]
    if not shares:
        return math.nan
    # Standard error of a mean of independent binomial shares.
    return 100 * math.sqrt(sum(share * (1 - share) / n for share, n in shares)) / len(shares)


def paired(values: Mapping[int, float], baseline: Mapping[int, float], relative: str) -> dict[int, float]:
    """The relative quantity (`ratio`, `speedup` or `difference`) of each seed that both have."""
    return {seed: PAIRINGS[relative](values[seed], baseline[seed]) for seed in values if seed in baseline}
