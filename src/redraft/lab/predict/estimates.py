"""Means over drafts with intervals over prompts: the rollouts of a prompt are not independent."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from scipy import stats

Sums = Mapping[str, np.ndarray]
"""Sums over all prompts, or over all but one, float64 () or (prompts,), by name."""


@dataclass(frozen=True)
class Estimate:
    """A quantity of sums, with a 95 % interval; both ends are NaN where a single prompt allows none."""

    value: float
    low: float
    high: float


def by_prompt(prompts: Sequence[int], columns: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Sums of each prompt, float64 (prompts,), in the order of their ids, from prompts and values of n rows."""
    _, places = np.unique(np.asarray(prompts), return_inverse=True)
    return {name: np.bincount(places, weights=values) for name, values in columns.items()}


def estimate(of_prompts: Mapping[str, np.ndarray], quantity: Callable[[Sums], np.ndarray]) -> Estimate:
    """A smooth function of sums over prompts, with a Student interval from the jackknife that leaves out a prompt."""
    totals = {name: values.sum() for name, values in of_prompts.items()}
    count = len(next(iter(of_prompts.values())))
    value = float(quantity(totals))
    if count < 2:
        return Estimate(value, math.nan, math.nan)
    left_out = quantity({name: totals[name] - values for name, values in of_prompts.items()})
    error = math.sqrt((count - 1) / count * float(((left_out - left_out.mean()) ** 2).sum()))
    half = float(stats.t.ppf(0.975, count - 1)) * error
    return Estimate(value, value - half, value + half)


def ratio(numerator: str, denominator: str) -> Callable[[Sums], np.ndarray]:
    """The ratio of two sums."""
    return lambda sums: sums[numerator] / sums[denominator]
