"""Prediction intervals of further blocks, and whether more numbers lie outside of them than between published blocks.

Values are arrays of shape (numbers, blocks) with the mean of each block, of ratios its logarithm; NaN is a block that
lacks the number. Let the published blocks of a number be N with mean M and standard deviation s. The mean of n further
blocks is then in M ± t · s · √(1/n + 1/N) with 95 % probability, where t is the quantile of Student's distribution with
N - 1 degrees of freedom. This assumes normally distributed blocks. `share_of_divisions` assumes less: that blocks are
exchangeable, so that each division of all blocks into n and N others is equally likely.
"""

import math
from collections.abc import Iterator
from itertools import combinations

import numpy as np
from scipy import stats

from redraft.analysis.data import statistics
from redraft.analysis.data.statistics import LEVEL

RELATIVE = 1e-9
"""Relative difference below which two numbers of tables differ by rounding alone."""
ROUNDING = 1e-12
"""The same of two blocks, and their difference if both are below 1."""
DIVISIONS = 999
"""Largest number of divisions that are all tried; of more, that many are sampled with a fixed seed."""


def standard_errors(own: np.ndarray, published: np.ndarray, least: np.ndarray | float = 0.0) -> np.ndarray:
    """Standard error of the difference between both means of each number, shape (numbers,); NaN with one block.

    The deviation is that of the published blocks alone, and at least `least`, as of `p_values`.
    """
    n, others = np.isfinite(own).sum(1), np.isfinite(published).sum(1)
    with np.errstate(all="ignore"):
        centred = published - _means(published)[:, None]
        variance = np.maximum(np.nansum(centred**2, axis=1) / (others - 1), np.square(least))
        return np.sqrt(variance * (1 / n + 1 / others))


def p_values(own: np.ndarray, published: np.ndarray, least: np.ndarray | float = 0.0) -> np.ndarray:
    """Two-sided p-value of each number's difference, shape (numbers,).

    If all published blocks are equal, it is that of `_p_of_equal_blocks`, unless the number has a least deviation.

    Args:
        own: shape (numbers, n).
        published: shape (numbers, N).
        least: shape (numbers,) or one for all, least deviation of each number.

    Returns:
        NaN where there are fewer than two published blocks or no other.
    """
    n, others = np.isfinite(own).sum(1), np.isfinite(published).sum(1)
    p = _p_of_deviations(own, published, least)
    for i in np.flatnonzero((others > 1) & (n > 0) & np.equal(least, 0)):
        if is_constant(published[i]):
            p[i] = _p_of_equal_blocks(own[i][np.isfinite(own[i])], published[i][np.isfinite(published[i])])
    return np.where((others > 1) & (n > 0), p, math.nan)


def is_constant(values: np.ndarray) -> bool:
    """True if all values that are there are equal up to rounding."""
    known = values[np.isfinite(values)]
    with np.errstate(over="ignore"):
        return len(known) > 0 and bool(np.ptp(known) <= ROUNDING * max(1.0, abs(known.min())))


def _p_of_deviations(own: np.ndarray, published: np.ndarray, least: np.ndarray | float) -> np.ndarray:
    """P-values by Student's distribution."""
    with np.errstate(all="ignore"):
        t = np.abs(_means(own) - _means(published)) / standard_errors(own, published, least)
        return 2 * stats.t.sf(t, np.isfinite(published).sum(1) - 1)


def _p_of_equal_blocks(own: np.ndarray, published: np.ndarray) -> float:
    """Share of all choices of the published blocks that are equal, and as far from the mean of the others as these are.

    It is at least one over the number of choices, since the true choice counts.
    """
    values = np.sort(np.append(own, published))
    with np.errstate(over="ignore"):
        # The others' mean is as far from a value v of the chosen blocks as the sum is from as many v, but for a factor.
        total, number, ways = values.sum(), len(values), 0
        rounding = number * ROUNDING * max(1.0, abs(published[0]))
        least = abs(total - number * published[0]) * (1 - RELATIVE) - rounding
        while len(values):
            equal = values - values[0] <= ROUNDING * max(1.0, abs(values[0]))
            if abs(total - number * values[0]) >= least:
                ways += math.comb(int(equal.sum()), len(published))
            values = values[~equal]
    return ways / math.comb(number, len(published))


def corrected(p: np.ndarray) -> np.ndarray:
    """P-values after Benjamini and Hochberg's correction (1995) over those below 1; NaN and 1 stay as they are."""
    # What is equal in all blocks of both is no test.
    tested = p < 1
    return np.where(tested, statistics.corrected(np.where(tested, p, np.nan)), p)


def share_of_divisions(own: np.ndarray, published: np.ndarray, least: np.ndarray | float = 0.0) -> tuple[float, int]:
    """Share of the divisions of all blocks that differ at least as much as the given one, and how many there are.

    One differs more than another if more of its corrected p-values are at most 0.05; with equally many the product of
    all p-values decides. Numbers may depend on each other and have any distribution: if blocks are exchangeable, the
    share is at most α in a share α of honest comparisons.

    Args:
        own: shape (numbers, n).
        published: shape (numbers, N); none of the blocks is among the others.
        least: as of `p_values`.
    """
    values, count = np.concatenate([own, published], axis=1), own.shape[1]
    found = [_difference(values, np.array(chosen), least) for chosen in _divisions(values.shape[1], count)]
    return sum(each >= found[0] for each in found) / len(found), len(found)


def _divisions(blocks: int, chosen: int) -> Iterator[tuple[int, ...]]:
    """Indices of the chosen blocks, the first ones first."""
    if math.comb(blocks, chosen) <= DIVISIONS:
        yield from combinations(range(blocks), chosen)
        return
    yield tuple(range(chosen))
    rng = np.random.default_rng(0)
    for _ in range(DIVISIONS - 1):
        yield tuple(rng.permutation(blocks)[:chosen])


def _difference(values: np.ndarray, chosen: np.ndarray, least: np.ndarray | float) -> tuple[int, float]:
    """How many numbers differ between the chosen blocks and the others, and minus the logarithm of all p-values."""
    p = p_values(values[:, chosen], np.delete(values, chosen, axis=1), least)
    # Rounded, since equal divisions of equal blocks must be equal; p-values of many deviations are 0.
    evidence = -float(np.log(np.maximum(p[p < 1], np.finfo(float).tiny)).sum())
    return int((corrected(p) <= LEVEL).sum()), round(evidence, 6)


def _means(values: np.ndarray) -> np.ndarray:
    with np.errstate(all="ignore"):
        return np.nansum(values, axis=1) / np.isfinite(values).sum(1)
