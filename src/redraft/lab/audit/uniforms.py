"""Uniform random numbers of the enumeration: independent ones, or one per position that is used more than once.

A rule uses uniforms to accept draft tokens, a policy to sample tokens by inverse CDF. The enumeration needs the
probabilities of both outcomes. If one uniform serves several decisions, their outcomes depend on each other. So (0, 1]
is split at all thresholds into *cells*, inside which every decision has one outcome, and distributions are means over
cells, weighted by the cells' probabilities. Independent uniforms are integrated out and need a single cell.

Shapes: C cells, T tokens of a draft, V vocabulary.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping
from itertools import product

import numpy as np

from redraft.methods.acceptance.rule import Rule


class IndependentUniforms:
    """A new uniform for every decision: one cell. Records the thresholds of all decisions (`thresholds`).

    `weights` are the probabilities of the cells, float64 (C,).
    """

    def __init__(self) -> None:
        self.weights = np.ones(1)
        self._acceptance: defaultdict[int, set[float]] = defaultdict(set)
        self._cumulative: defaultdict[int, set[float]] = defaultdict(set)

    def kept(self, rule: Rule, acceptance: np.ndarray) -> np.ndarray:
        """Distribution over kept lengths for acceptance probabilities float64 (T,): float64 (C or 1, T + 1)."""
        for position, probability in enumerate(acceptance):
            self._acceptance[position].add(float(probability))
        return rule.distribution_of_kept(acceptance)[None]

    def tokens(self, position: int, distribution: np.ndarray) -> np.ndarray:
        """Distribution of the token sampled at a position from float64 (V,): float64 (C or 1, V)."""
        self._cumulative[position].update(map(float, np.cumsum(distribution)[:-1]))
        return distribution[None]

    def thresholds(self, sampling: bool) -> dict[int, set[float]]:
        """Values at which an outcome changes, by position: of acceptance and, with `sampling`, of sampled tokens."""
        positions = self._acceptance.keys() | self._cumulative.keys()
        return {at: self._acceptance[at] | (self._cumulative[at] if sampling else set()) for at in positions}


class CommonUniforms:
    """One uniform on (0, 1] per position, which makes every acceptance decision there.

    Args:
        thresholds: all values at which an outcome changes, by position (`IndependentUniforms.thresholds`).
        sampling: true if the uniform also samples the token of its position, by inverse CDF.
    """

    def __init__(self, thresholds: Mapping[int, Iterable[float]], sampling: bool) -> None:
        # Clipped, since rounding moves cumulative sums beyond 1.
        edges = [np.unique([0.0, *np.clip(list(thresholds[at]), 0, 1), 1.0]) for at in sorted(thresholds)]
        self._sampling = sampling
        # The midpoint represents its cell: no threshold lies inside one. Cells of a response are products of these.
        self._midpoints = _grid([(each[1:] + each[:-1]) / 2 for each in edges])
        self.weights = _grid([np.diff(each) for each in edges]).prod(axis=0)

    def kept(self, rule: Rule, acceptance: np.ndarray) -> np.ndarray:
        """One-hot over kept lengths in each cell, float64 (C, T + 1)."""
        n = len(acceptance)
        # Uniforms are on (0, 1], so `<=`: a probability of 0 never accepts.
        accepted = self._midpoints[:n] <= acceptance[:, None]
        by_pattern = {flags: rule.kept(np.array(flags, bool)) for flags in product((0, 1), repeat=n)}
        # a pattern's index is the binary number of its flags, the first one most significant
        kept = np.array(list(by_pattern.values()))[accepted.T @ (1 << np.arange(n)[::-1])]
        return (kept[:, None] == np.arange(n + 1)).astype(float)

    def tokens(self, position: int, distribution: np.ndarray) -> np.ndarray:
        """One-hot of the token that the uniform selects in each cell, or the distribution if it does not sample."""
        if not self._sampling:
            return distribution[None]
        # Without the last sum, which may be just below 1: the last token takes what is left.
        token = np.searchsorted(np.cumsum(distribution)[:-1], self._midpoints[position])
        return (token[:, None] == np.arange(len(distribution))).astype(float)


Uniforms = IndependentUniforms | CommonUniforms


def _grid(sides: list[np.ndarray]) -> np.ndarray:
    """Cartesian product, (sides, combinations)."""
    return np.array([each.ravel() for each in np.meshgrid(*sides, indexing="ij")])
