"""G-test of sampled responses against a distribution, and the sample size that a stated power needs.

G = 2 sum over classes of O ln(O / E), for observed counts O and expected counts E. Under the null hypothesis it has
asymptotically a chi-squared distribution with classes - 1 degrees of freedom.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from scipy import stats

LEVEL = 1e-6
"""Significance level; a correct sampler is rejected once in a million tests."""
POWER = 0.99
"""Probability of rejecting a sampler at the stated distance."""
MIN_EXPECTED_COUNT = 5.0
"""Responses that are expected less often are pooled into one class, since G is not chi-squared for small counts."""


@dataclass(frozen=True)
class GTest:
    """Result of a G-test; `distance` is the total variation of empirical and expected frequencies, always above 0."""

    samples: int
    classes: int
    statistic: float
    p_value: float
    distance: float

    @property
    def rejected(self) -> bool:
        """True if the null hypothesis is rejected: the sampler's distribution is another one."""
        return self.p_value < LEVEL


def g_test(counts: np.ndarray, distribution: np.ndarray) -> GTest:
    """Test counts of responses, integer (R,), against their distribution, float64 (R,)."""
    samples = int(counts.sum())
    expected_R = distribution * samples
    rare_R = expected_R < MIN_EXPECTED_COUNT
    # The pooled class is kept even if it is rare itself: its responses would be untested.
    observed, expected = (np.append(x[~rare_R], x[rare_R].sum()) for x in (counts.astype(float), expected_R))
    possible = expected > 0
    if observed[~possible].any():  # a response of probability 0 was sampled
        distance = float(np.abs(counts / samples - distribution).sum() / 2)
        return GTest(samples, int(possible.sum()), math.inf, 0.0, distance)
    # power_divergence requires equal sums; rounding leaves them apart
    observed, expected = observed[possible], expected[possible] * observed[possible].sum() / expected[possible].sum()
    test = stats.power_divergence(observed, expected, lambda_="log-likelihood")
    distance = float(np.abs(observed - expected).sum() / 2 / samples)
    return GTest(samples, len(observed), float(test.statistic), float(test.pvalue), distance)


def power(samples: int, classes: int, distance: float) -> float:
    """Lower bound of the probability to reject a sampler at total variation `distance` or more.

    For a sampler of distribution s, G is approximately non-central chi-squared with non-centrality
    n sum (s - p)^2 / p, which is at least 4 n TV^2 by the Cauchy-Schwarz inequality.
    """
    # More classes lower the power, so the number of all responses bounds it from below.
    return _rejected(classes - 1, 4 * samples * distance**2)


def _rejected(freedom: int, noncentrality: float) -> float:
    """Probability that a non-central chi-squared variable exceeds the critical value."""
    # Under a wrong distribution G is non-central chi-squared, and rejected above the null's critical value.
    return float(stats.ncx2.sf(stats.chi2.isf(LEVEL, freedom), freedom, noncentrality))


def samples_for(classes: int, distance: float) -> int:
    """Sample size at which the power reaches `POWER`, rounded up to two significant digits."""
    return _least(lambda samples: power(samples, classes, distance))


def samples_against(wrong: np.ndarray, distribution: np.ndarray) -> int:
    """Sample size at which a G-test rejects samples of the distribution `wrong`, both float64 (R,), with `POWER`."""

    def power_of(samples: int) -> float:
        expected_R, wrong_R = samples * distribution, samples * wrong
        often = expected_R >= MIN_EXPECTED_COUNT
        expected, other = (np.append(x[often], x[~often].sum()) for x in (expected_R, wrong_R))
        possible = expected > 0
        return _rejected(int(possible.sum()) - 1, float(((other - expected)[possible] ** 2 / expected[possible]).sum()))

    return _least(power_of)


MANY_SAMPLES = 10**8
"""Sample sizes above this are not searched."""


def _least(power_of: Callable[[int], float]) -> int:
    """Smallest sample size from 100 on with `POWER`, rounded up to two significant digits; at most `MANY_SAMPLES`."""
    samples = 100
    while power_of(samples) < POWER and samples < MANY_SAMPLES:
        # Steps of 10 %: two digits are kept anyway.
        samples = math.ceil(samples * 1.1)
    digits = 10 ** (len(str(samples)) - 2)
    return math.ceil(samples / digits) * digits
