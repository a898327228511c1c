"""Smallest errors of a sampler that the tests would have found, computed from the very tokens of a certificate."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from scipy import stats

from redraft.certify.positions import TILTS, Other, Positions
from redraft.certify.reuse import ERRORS
from redraft.certify.statistics import DRAFTED, RANKS, SHARES, TAILS, groups, reuse_ratios

POWER = 0.95
"""Probability with which an error of the stated size is found."""


@dataclass(frozen=True)
class Detectable:
    """An error and the smallest size at which it is found with probability `POWER`; None if no size is."""

    error: str
    size: float | None


def detectable(tested: Positions, others: Mapping[str, Other], level: float) -> list[Detectable]:
    """Smallest errors found.

    Args:
        tested: the sampled tokens.
        others: the same tokens under other policies, by name.
        level: significance level of one family of tests.
    """
    found = [Detectable("relative error of the temperature", temperature(tested, level))]
    if tested.end_prob.any():
        p, cells = tested.end_prob, 1 + len(np.unique(groups(tested.index)))
        shift = _shift((p * (1 - p)).sum(), level / cells)
        found.append(Detectable("relative error of the end token's probability", _share(shift, p.sum())))
    bound = _bound(level / (len(TAILS) + len(RANKS)))
    # Nothing is observed in a tested tail that is cut off: exp(-n tail) is the bound of the p-value.
    cut = min((tail for tail in TAILS if tail * len(tested) >= bound), default=None)
    found.append(Detectable("least probable mass that is cut off, as by top-p", cut))
    first = 1 - tested.top_probs[:, 0]
    shift = _shift((first * (1 - first)).sum(), level / (len(TAILS) + len(RANKS)))
    found.append(Detectable("share of tokens that are chosen greedily", _share(shift, first.sum())))
    return found + [each for name, other in others.items() for each in _reuse(tested, name, other, level)]


def _reuse(tested: Positions, name: str, other: Other, level: float) -> list[Detectable]:
    """Smallest share of responses that have drafts of another policy and an error of reuse."""
    if (logs_RDE := reuse_ratios(tested, other)) is None:
        return []
    # If the error is there, the mean of a function is that of its product with the likelihood ratio.
    weights_RDE = np.exp(logs_RDE)
    products = weights_RDE * np.where(weights_RDE > 0, logs_RDE, 0)
    mean_DE = products.mean(axis=0)
    variance_DE = np.maximum((products * np.where(weights_RDE > 0, logs_RDE, 0)).mean(axis=0) - mean_DE**2, 0)
    lengths = int(tested.index.max()).bit_length() + 1
    needed = np.log((len(DRAFTED) * len(ERRORS) + lengths * len(SHARES)) / level)
    n = len(logs_RDE)
    found_DE = n * mean_DE - stats.norm.ppf(POWER) * np.sqrt(n * variance_DE) >= needed
    return [
        Detectable(
            f"share of responses with drafts of {name}, {error}",
            next((share for share, enough in zip(DRAFTED, column, strict=True) if enough), None),
        )
        for error, column in zip(ERRORS, found_DE.T, strict=True)
    ]


def temperature(tested: Positions, level: float) -> float | None:
    """Smallest relative error of the temperature that is found."""
    # If the temperature is that of a tilt t, the log likelihood ratio of a tested tilt d is normal with mean
    # I (t d - d^2 / 2) and variance I d^2. Errors far below the smallest tested tilt are not found, however large I is.
    information = tested.information.sum()
    if not information:
        return None
    tilts = np.abs(TILTS[TILTS < 0])
    least = np.log(len(TILTS) / level) / (information * tilts) + tilts / 2
    return _share(float(least.min() + stats.norm.ppf(POWER) / np.sqrt(information)), 1.0)


def _bound(level: float) -> float:
    """Exponent at which a count's p-value (four bounds) is below the level."""
    return float(np.log(4 / level))


def _shift(variance: float, level: float) -> float:
    """Shift of a count that is found, by Freedman's inequality (in Bernstein's form) and the count's own deviation."""
    bound = _bound(level)
    return float(bound / 3 + np.sqrt(bound**2 / 9 + 2 * variance * bound) + stats.norm.ppf(POWER) * np.sqrt(variance))


def _share(part: float, whole: float) -> float | None:
    """Part of a whole; None if it is not below it."""
    return float(part / whole) if part < whole else None
