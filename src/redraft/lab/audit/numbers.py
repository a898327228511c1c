"""Random numbers that decide on drafts and draw tokens, for distributions: independent ones, and one a place for
everything.

A rule and a policy ask them two things: how many tokens are kept, and which token is drawn. The answers are
probabilities, given a *cell* of what the numbers may be. Independent numbers have one cell. Numbers that are asked more
than once have as many as it takes for all answers inside a cell to be the same, so that distributions are sums over
cells.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping
from itertools import product

import numpy as np

from redraft.methods.acceptance.rule import Rule


class Fresh:
    """Independent numbers for everything, in one cell; remembers the probabilities that it was asked for.

    `weights` are the probabilities of the cells, float64 (cells,).
    """

    def __init__(self) -> None:
        self.weights = np.ones(1)
        self._acceptance: defaultdict[int, set[float]] = defaultdict(set)
        self._drawn: defaultdict[int, set[float]] = defaultdict(set)

    def kept(self, rule: Rule, acceptance: np.ndarray) -> np.ndarray:
        """Probability of each number of kept tokens, float64 (cells, n + 1), or one row if all have the same.

        The rule accepts the draft's tokens with the probabilities `acceptance`, float64 (n,).
        """
        for place, probability in enumerate(acceptance):
            self._acceptance[place].add(float(probability))
        return rule.distribution_of_kept(acceptance)[None]

    def drawn(self, place: int, distribution: np.ndarray) -> np.ndarray:
        """Probability of each token at a position, float64 (cells, vocabulary), or one row if all have the same.

        `distribution` is the token's distribution, float64 (vocabulary,).
        """
        self._drawn[place].update(map(float, np.cumsum(distribution)[:-1]))
        return distribution[None]

    def bounds(self, draws: bool) -> dict[int, set[float]]:
        """Numbers at which an answer changes, by place: those of drafts, and with `draws` those of tokens too."""
        places = self._acceptance.keys() | self._drawn.keys()
        return {place: self._acceptance[place] | (self._drawn[place] if draws else set()) for place in places}


class Shared:
    """One number a place, uniform on (0, 1], which accepts the draft's token there whenever it is asked.

    Args:
        bounds: all numbers at which an answer changes, by place (`Fresh.bounds`).
        draws: whether it also draws the tokens of its place, by inversion.
    """

    def __init__(self, bounds: Mapping[int, Iterable[float]], draws: bool) -> None:
        edges = [np.unique([0.0, *np.clip(list(bounds[place]), 0, 1), 1.0]) for place in sorted(bounds)]
        self._draws = draws
        self._uniforms = _grid([(each[1:] + each[:-1]) / 2 for each in edges])
        self.weights = _grid([np.diff(each) for each in edges]).prod(axis=0)

    def kept(self, rule: Rule, acceptance: np.ndarray) -> np.ndarray:
        """1 for the number of tokens that the rule keeps in a cell."""
        n = len(acceptance)
        accepted = self._uniforms[:n] <= acceptance[:, None]
        by_pattern = {flags: rule.kept(np.array(flags, bool)) for flags in product((0, 1), repeat=n)}
        kept = np.array(list(by_pattern.values()))[accepted.T @ (1 << np.arange(n)[::-1])]
        return (kept[:, None] == np.arange(n + 1)).astype(float)

    def drawn(self, place: int, distribution: np.ndarray) -> np.ndarray:
        """1 for the token that the number draws, or the distribution if others draw."""
        if not self._draws:
            return distribution[None]
        token = np.searchsorted(np.cumsum(distribution)[:-1], self._uniforms[place])
        return (token[:, None] == np.arange(len(distribution))).astype(float)


Numbers = Fresh | Shared


def _grid(sides: list[np.ndarray]) -> np.ndarray:
    """All combinations of a value of each side, (sides, combinations)."""
    return np.array([each.ravel() for each in np.meshgrid(*sides, indexing="ij")])
