"""Estimates over seeds. Runs are paired by seed wherever two cells are compared."""

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from scipy import stats

PAIRINGS: dict[str, Callable[[float, float], float]] = {
    "ratio": lambda value, baseline: value / baseline if baseline else math.nan,
    "speedup": lambda value, baseline: baseline / value if value else math.inf,
    "difference": lambda value, baseline: value - baseline,
}
NEUTRAL = {"ratio": 1.0, "speedup": 1.0, "difference": 0.0}
"""What a relative quantity is when a cell equals its baseline."""


@dataclass(frozen=True)
class Estimate:
    """Mean over seeds with a 95 % bootstrap interval.

    Attributes:
        mean: NaN if there is no run.
        low: lower end of the interval; NaN with fewer than two seeds.
        high: upper end.
        seeds: which runs it rests on.
    """

    mean: float
    low: float
    high: float
    seeds: tuple[int, ...]


def estimate(values: Mapping[int, float]) -> Estimate:
    """Mean and percentile bootstrap over seeds (scipy, 9,999 resamples, fixed seed).

    With very few seeds the interval is hardly more than their range; the number of seeds stands beside it everywhere.
    """
    seeds = tuple(sorted(seed for seed, value in values.items() if not math.isnan(value)))
    array = np.array([values[seed] for seed in seeds])
    if not len(array):
        return Estimate(math.nan, math.nan, math.nan, ())
    mean = float(array.mean())
    if len(array) == 1 or not np.isfinite(array).all():
        return Estimate(mean, math.nan, math.nan, seeds)
    if np.ptp(array) == 0:
        return Estimate(mean, mean, mean, seeds)
    result = stats.bootstrap((array,), np.mean, method="percentile", rng=np.random.default_rng(0))
    return Estimate(mean, float(result.confidence_interval.low), float(result.confidence_interval.high), seeds)


def paired(values: Mapping[int, float], baseline: Mapping[int, float], relative: str) -> dict[int, float]:
    """The relative quantity of each seed that both have.

    Args:
        relative: `ratio`, `speedup` or `difference`.
    """
    return {seed: PAIRINGS[relative](values[seed], baseline[seed]) for seed in values if seed in baseline}


def consecutive(sequences: Sequence[Mapping[int, float]]) -> list[Estimate]:
    """Paired differences between neighbours of a sequence of cells."""
    return [estimate(paired(later, earlier, "difference")) for earlier, later in itertools.pairwise(sequences)]
