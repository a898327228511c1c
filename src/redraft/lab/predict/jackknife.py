"""Means over drafts with jackknife intervals over prompts, since rollouts of one prompt are not independent.

The delete-one jackknife (Efron and Tibshirani, An Introduction to the Bootstrap, chapter 11) leaves out one prompt at a
time. With theta_(i) the quantity without prompt i, its standard error is sqrt((n - 1) / n sum_i (theta_(i) - mean)^2).
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from scipy import stats

Sums = Mapping[str, np.ndarray]
"""Column sums by name: over all prompts, float64 (), or over all but one for each, float64 (prompts,)."""


@dataclass(frozen=True)
class IntervalEstimate:
    """A value with a 95 % interval; its ends are NaN for a single prompt, which allows none."""

    value: float
    low: float
    high: float


def by_prompt(prompts: Sequence[int], columns: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Sums of columns (n,) over the rows of each prompt, float64 (prompts,), in the order of prompt ids."""
    _, indices = np.unique(np.asarray(prompts), return_inverse=True)
    return {name: np.bincount(indices, weights=values) for name, values in columns.items()}


def estimate(of_prompts: Mapping[str, np.ndarray], quantity: Callable[[Sums], np.ndarray]) -> IntervalEstimate:
    """A smooth function of column sums, with a Student-t interval from the jackknife over prompts."""
    totals = {name: values.sum() for name, values in of_prompts.items()}
    count = len(next(iter(of_prompts.values())))
    value = float(quantity(totals))
    # Nothing is left without the only prompt.
    if count < 2:
        return IntervalEstimate(value, math.nan, math.nan)
    # All leave-one-out values at once: sums without a prompt are totals less its own.
    left_out = quantity({name: totals[name] - values for name, values in of_prompts.items()})
    error = math.sqrt((count - 1) / count * float(((left_out - left_out.mean()) ** 2).sum()))
    half = float(stats.t.ppf(0.975, count - 1)) * error
    return IntervalEstimate(value, value - half, value + half)


def ratio(numerator: str, denominator: str) -> Callable[[Sums], np.ndarray]:
    """The ratio of two sums."""
    return lambda sums: sums[numerator] / sums[denominator]
