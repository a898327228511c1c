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

from redraft.analysis.data.statistics import LEVEL

RELATIVE = 1e-9
"""Relative difference below which two numbers differ by rounding alone."""
DIVISIONS = 999
"""Largest number of divisions that are all tried; of more, that many are sampled with a fixed seed."""


def standard_errors(own: np.ndarray, published: np.ndarray) -> np.ndarray:
    """Standard error of the difference between both means of each number, shape (numbers,); NaN with one block.

    The deviation is that of the published blocks alone, and not below that of rounding.
    """
    n, others = np.isfinite(own).sum(1), np.isfinite(published).sum(1)
    with np.errstate(all="ignore"):
        centred = published - _means(published)[:, None]
        rounding = RELATIVE * np.maximum(1.0, np.fmax.reduce(np.abs(published), axis=1))
        variance = np.maximum(np.nansum(centred**2, axis=1) / (others - 1), rounding**2)
        return np.sqrt(variance * (1 / n + 1 / others))


def p_values(own: np.ndarray, published: np.ndarray) -> np.ndarray:
    """Two-sided p-value of each number's difference, shape (numbers,).

    If all published blocks have the same value, it is the chance that as many blocks of all with the same values are
    equal. Published blocks that differ by rounding alone, such as a drift of 1e-14, have the deviation of rounding.

    Returns:
        NaN where there are fewer than two published blocks or no other.
    """
    n, others = np.isfinite(own).sum(1), np.isfinite(published).sum(1)
    difference = _means(own) - _means(published)
    with np.errstate(all="ignore"):
        p = 2 * stats.t.sf(np.abs(difference) / standard_errors(own, published), others - 1)
    for i in np.flatnonzero((others > 1) & (n > 0)):
        if len(np.unique(published[i][np.isfinite(published[i])])) == 1:
            p[i] = _chance_of_equal_blocks(np.append(own[i], published[i]), int(others[i]))
    return np.where((others > 1) & (n > 0), p, math.nan)


def _chance_of_equal_blocks(values: np.ndarray, chosen: int) -> float:
    """Probability that `chosen` of all blocks, sampled without order, have the same value up to rounding."""
    known = np.sort(values[np.isfinite(values)])
    ends = np.flatnonzero(np.diff(known) > RELATIVE * max(1.0, np.abs(known).max())) + 1
    counts = np.diff([0, *ends, len(known)])
    return sum(math.comb(int(count), chosen) for count in counts) / math.comb(len(known), chosen)


def corrected(p: np.ndarray) -> np.ndarray:
    """P-values after Benjamini and Hochberg's correction (1995) over those below 1; NaN and 1 stay as they are."""
    # What is equal in all blocks of both is no test.
    tested, found = p < 1, p.copy()
    if tested.any():
        found[tested] = stats.false_discovery_control(p[tested])
    return found


def share_of_divisions(own: np.ndarray, published: np.ndarray) -> tuple[float, int]:
    """Share of the divisions of all blocks that differ at least as much as the given one, and how many there are.

    One differs more than another if more of its corrected p-values are at most 0.05; with equally many the product of
    all p-values decides. Numbers may depend on each other and be distributed in any way: if blocks are exchangeable,
    the share is at most α in a share α of honest comparisons.

    Args:
        own: shape (numbers, n).
        published: shape (numbers, N); none of the blocks is among the others.
    """
    values, count = np.concatenate([own, published], axis=1), own.shape[1]
    found = [_difference(values, np.array(chosen)) for chosen in _divisions(values.shape[1], count)]
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


def _difference(values: np.ndarray, chosen: np.ndarray) -> tuple[int, float]:
    """How many numbers differ between the chosen blocks and the others, and minus the logarithm of all p-values."""
    p = p_values(values[:, chosen], np.delete(values, chosen, axis=1))
    # Rounded, since equal divisions of equal blocks must be equal; p-values of many deviations are 0.
    evidence = -float(np.log(np.maximum(p[p < 1], np.finfo(float).tiny)).sum())
    return int((corrected(p) <= LEVEL).sum()), round(evidence, 6)


def _means(values: np.ndarray) -> np.ndarray:
    with np.errstate(all="ignore"):
        return np.nansum(values, axis=1) / np.isfinite(values).sum(1)
