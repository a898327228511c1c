"""G-test of drawn responses against their distribution, and the number of draws that a stated power needs."""

import math
from dataclasses import dataclass

import numpy as np
from scipy import stats

LEVEL = 1e-6
"""p-value below which a distribution is called wrong; of a million right samplers one would be."""
POWER = 0.99
"""Probability with which a distribution at the stated distance is called wrong."""
LEAST = 5.0
"""Expected draws of a class; responses that are expected less often count together."""


@dataclass(frozen=True)
class Tested:
    """Result of a G-test; `distance` is the total variation of the frequencies, not 0 for a right sampler either."""

    draws: int
    classes: int
    statistic: float
    p_value: float
    distance: float

    @property
    def wrong(self) -> bool:
        """True if the distribution is refuted."""
        return self.p_value < LEVEL


def g_test(counts: np.ndarray, distribution: np.ndarray) -> Tested:
    """Test counts of responses, integer (responses,), against their distribution, float64 (responses,)."""
    draws = int(counts.sum())
    expected = distribution * draws
    rare = expected < LEAST
    seen, awaited = (np.append(part[~rare], part[rare].sum()) for part in (counts.astype(float), expected))
    there = awaited > 0
    if seen[~there].any():  # something of probability 0 was drawn
        return Tested(draws, int(there.sum()), math.inf, 0.0, float(np.abs(counts / draws - distribution).sum() / 2))
    seen, awaited = seen[there], awaited[there] * seen[there].sum() / awaited[there].sum()
    found = stats.power_divergence(seen, awaited, lambda_="log-likelihood")
    distance = float(np.abs(seen - awaited).sum() / 2 / draws)
    return Tested(draws, len(seen), float(found.statistic), float(found.pvalue), distance)


def power(draws: int, classes: int, distance: float) -> float:
    """Probability that a distribution is called wrong if the sampler's is at least so far from it in total variation.

    G has then, nearly, a chi-squared distribution with the non-centrality n sum (s - p)^2 / p, which is at least 4 n
    TV^2 by Cauchy and Schwarz.
    """
    freedom = classes - 1
    return float(stats.ncx2.sf(stats.chi2.isf(LEVEL, freedom), freedom, 4 * draws * distance**2))


def draws_for(classes: int, distance: float) -> int:
    """Number of draws, to two digits, with which the power is `POWER`."""
    draws = 100
    while power(draws, classes, distance) < POWER:
        draws = math.ceil(draws * 1.1)
    digits = 10 ** (len(str(draws)) - 2)
    return math.ceil(draws / digits) * digits
