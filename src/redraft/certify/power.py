"""Smallest errors of a sampler that the tests would have found, computed from the very tokens of a certificate."""

from dataclasses import dataclass

import numpy as np
from scipy import stats

from redraft.certify.positions import TILTS, Positions
from redraft.certify.statistics import RANKS, TAILS, groups

POWER = 0.95
"""Probability with which an error of the stated size is found."""


@dataclass(frozen=True)
class Detectable:
    """An error and the smallest size at which it is found with probability `POWER`; None if no size is."""

    error: str
    size: float | None


def detectable(tested: Positions, level: float) -> list[Detectable]:
    """Smallest errors found.

    Args:
        tested: the sampled tokens.
        level: significance level of one family of tests.
    """
    found = [Detectable("relative error of the temperature", temperature(tested, level))]
    if tested.end_prob.any():
        p, cells = tested.end_prob, 1 + len(np.unique(groups(tested.index)))
        shift = _shift((p * (1 - p)).sum(), level / cells)
        found.append(Detectable("relative error of the end token's probability", _share(shift, p.sum())))
    bound = _bound(level / (len(TAILS) + len(RANKS)))
    # Nothing is observed in a tail that is cut off: exp(-n tail) is the bound of the p-value.
    found.append(Detectable("cut off mass (1 - top-p)", _share(bound, len(tested))))
    first = 1 - tested.top_probs[:, 0]
    shift = _shift((first * (1 - first)).sum(), level / (len(TAILS) + len(RANKS)))
    found.append(Detectable("share of tokens that are chosen greedily", _share(shift, first.sum())))
    return found


def temperature(tested: Positions, level: float) -> float | None:
    """Smallest relative error of the temperature that is found."""
    # The log likelihood ratio of a tilt d is normal with mean I d^2 / 2 and variance I d^2.
    needed = np.sqrt(2 * np.log(len(TILTS) / level)) + stats.norm.ppf(POWER)
    information = tested.information.sum()
    return _share(needed, np.sqrt(information))


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
