"""Power of a comparison: the smallest effect that it would show, and the number of blocks that an effect needs.

A verdict is a two-sided t-test of a mean over blocks against a number. If the effect is δ and blocks spread with the
standard deviation s, the test statistic has a noncentral t distribution with noncentrality δ·√n / s. Of ratios all of
these are logarithms.
"""

import math
from dataclasses import dataclass
from functools import cache

import numpy as np
from scipy import optimize, stats

from redraft.analysis.data.sequential import MOST_BLOCKS, nominal_level
from redraft.analysis.data.statistics import LEVEL, ROUNDING, Estimate

POWER = 0.8
"""Probability with which a detectable effect gets a verdict."""
GRID = 4096
"""Quantiles of a standard deviation by which a power is averaged; the error is below 0.001."""


@dataclass(frozen=True)
class Detectable:
    """Smallest effect that a comparison shows with probability `POWER`, and its 95 % interval.

    The interval is that of the standard deviation (chi-squared): three blocks know it up to a factor of 0.5 to 6.

    Attributes:
        effect: in the values' unit; of ratios a factor above 1. So are `low` and `high`.
    """

    effect: float
    low: float
    high: float


@cache
def standardized(blocks: int, level: float = LEVEL) -> float:
    """Smallest detectable effect of a t-test over blocks, in standard deviations of a block; infinite for one block."""
    if blocks < 2:
        return math.inf
    # By quantiles of the sample's standard deviation, since SciPy's noncentral t is NaN or too certain in the far tails
    # of few blocks.
    freedom = blocks - 1
    spreads = np.sqrt(stats.chi2.ppf((np.arange(GRID) + 0.5) / GRID, freedom) / freedom)
    limits = stats.t.ppf(1 - level / 2, freedom) * spreads

    # As large as the largest limit, a shift is beyond nearly all of them.
    shift = optimize.brentq(
        lambda shift: np.mean(stats.norm.sf(limits - shift) + stats.norm.cdf(-limits - shift)) - POWER,
        0.0,
        float(limits.max()) + 10,
    )
    return float(shift) / math.sqrt(blocks)


def detectable(found: Estimate, level: float = LEVEL) -> Detectable | None:
    """Smallest effect that the blocks of an estimate show; None if they allow no test or do not vary.

    Args:
        found: estimate with its blocks.
        level: largest p-value that counts (`Family.level`).
    """
    spread = _spread(found)
    if not spread:
        return None
    count = len(found.units)
    # (n - 1) s² / σ² has a chi-squared distribution.
    factors = np.sqrt((count - 1) / stats.chi2.ppf([1 - LEVEL / 2, LEVEL / 2], count - 1))
    # Of a sequential campaign that of the latest look alone: earlier ones could have shown it too.
    effects = standardized(count, nominal_level(level, found.looks)) * spread * np.array([1.0, *factors])
    with np.errstate(over="ignore"):
        return Detectable(*map(float, np.exp(effects) if found.has_logs else effects))


def blocks_needed(found: Estimate, against: float, level: float = LEVEL) -> int | None:
    """Blocks with which the effect that was measured would be shown with probability `POWER`.

    None if the estimate allows no test, if it lies on the number that it is tested against, or beyond `MOST_BLOCKS`.
    """
    spread = _spread(found)
    if not spread or (found.has_logs and against <= 0):
        return None
    threshold = math.log(against) if found.has_logs else against
    effect = abs(float(np.mean(found.units)) - threshold) / spread
    level = nominal_level(level, found.looks)
    if standardized(MOST_BLOCKS, level) > effect:
        return None
    low, high = 2, MOST_BLOCKS
    while low < high:  # the smallest count that detects the effect: the detectable one falls with the count
        middle = (low + high) // 2
        low, high = (low, middle) if standardized(middle, level) <= effect else (middle + 1, high)
    return low


def can_still_show(found: Estimate, against: float, level: float = LEVEL) -> bool:
    """Whether the last look of a sequential campaign may show the effect, if it is as large as it can well be.

    That is the measured effect and one standard error. A campaign that goes on for a smaller one would use all of its
    blocks, and most of such campaigns would decide nothing. True without a plan.
    """
    spread = _spread(found)
    if not found.looks or not spread or (found.has_logs and against <= 0):
        return not found.looks or len(found.units) < found.looks[0]
    threshold = math.log(against) if found.has_logs else against
    largest = abs(float(np.mean(found.units)) - threshold) + spread / math.sqrt(len(found.units))
    return standardized(found.looks[-1], nominal_level(level, found.looks)) * spread <= largest


def _spread(found: Estimate) -> float:
    """Standard deviation of the blocks' means; 0 where there is no test, and where they differ by rounding alone."""
    if not found.testable or np.ptp(found.units) <= ROUNDING * max(1.0, *map(abs, found.units)):
        return 0.0
    return float(np.std(found.units, ddof=1))
