"""Passes of a rollout as a toggle saw them: recorded by a run, and replayed.

A rollout of thousands of passes changes its batch a few hundred times. So passes are kept in stretches: those that
follow each other with the same responses, and propose equally many tokens.
"""

from collections.abc import Iterable, Iterator
from typing import NamedTuple

import numpy as np


class Stretch(NamedTuple):
    """Consecutive passes with the same responses.

    Attributes:
        active: responses that decode.
        proposals: of each response in a pass; 0 without speculation.
        passes: 1 or more.
        first: mean length of the responses with their prompts before the first pass, tokens.
        last: the same before the last pass.
    """

    active: int
    proposals: int
    passes: int
    first: float
    last: float

    @property
    def lengths(self) -> np.ndarray:
        """Mean length before each pass, float64 (passes,): exact without speculation, else evenly between the ends."""
        return np.linspace(self.first, self.last, self.passes)

    def followed_by(self, active: int, proposals: int, length: float) -> bool:
        """Whether a pass belongs to this stretch: the same responses are longer, by one token without speculation."""
        grown = length - self.last
        same = grown > 0 if proposals else abs(grown - 1) < 1e-6
        return same and (active, proposals) == (self.active, self.proposals)


def extend(trace: list[Stretch], active: int, proposals: int, length: float) -> None:
    """Add a pass to a trace."""
    if trace and trace[-1].followed_by(active, proposals, length):
        trace[-1] = trace[-1]._replace(passes=trace[-1].passes + 1, last=length)
    else:
        trace.append(Stretch(active, proposals, 1, length, length))


def passes_of(trace: Iterable[Stretch]) -> Iterator[tuple[int, float]]:
    """Active responses and their mean length before each pass."""
    for stretch in trace:
        for length in stretch.lengths.tolist():
            yield stretch.active, length
