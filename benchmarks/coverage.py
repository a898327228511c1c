"""How often 95 % intervals hold the true mean when seeds share blocks: three kinds, on simulated campaigns."""

import itertools
from collections import Counter

import numpy as np
from scipy import stats

from redraft.analysis.data.statistics import estimate

BLOCKS = 5
CAMPAIGNS = 1000


def coverage(within: float, seeds_per_block: int) -> dict[str, float]:
    """Share of campaigns whose interval holds the true mean, 0, by kind of interval.

    Args:
        within: standard deviation of a seed's effect; that of a block's is 1.
        seeds_per_block: number of seeds of each block.
    """
    rng = np.random.default_rng(1)
    blocks = {seed: seed % BLOCKS for seed in range(BLOCKS * seeds_per_block)}
    held: Counter[str] = Counter()
    for _ in range(CAMPAIGNS):
        shared = rng.normal(size=BLOCKS)
        values = {seed: float(shared[block] + within * rng.normal()) for seed, block in blocks.items()}
        found, array = estimate(values, blocks), np.array(list(values.values()))
        low, high = stats.t.interval(0.95, len(array) - 1, loc=array.mean(), scale=stats.sem(array))
        held["Student over blocks"] += 0.0 in found.interval
        held["two-level bootstrap"] += 0.0 in found.bootstrap
        held["Student over seeds"] += bool(low <= 0 <= high)
    return {kind: count / CAMPAIGNS for kind, count in held.items()}


if __name__ == "__main__":
    for within, seeds in itertools.product((0.5, 2.0), (2, 5)):
        print(f"within {within}, {seeds} seeds a block:", coverage(within, seeds))
