"""What the rules of all methods would keep of drafts, by sums and by the rules that are trained with."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from redraft.errors import UserError
from redraft.methods.acceptance.positions import Positions
from redraft.methods.reuse import Candidate, ReuseMethod

LENIENCES = (1.0, math.exp(0.2), math.exp(0.5))
"""Of the published rule."""
TOP = 32
"""Most probable tokens of q that a rule stores, if not all (`redraft.methods.reuse`)."""


@dataclass(frozen=True, eq=False)
class Kept:
    """What a rule keeps of drafts, in expectation.

    Attributes:
        tokens: float64 (drafts,), expected number of kept tokens.
        whole: float64 (drafts,), probability that a draft is kept whole.
    """

    tokens: np.ndarray
    whole: np.ndarray


def candidates(leniences: Sequence[float] = LENIENCES, top: int = TOP) -> list[Candidate]:
    """All rules.

    Args:
        leniences: of the published rule.
        top: as of `read_positions`.
    """
    return [rule for method in ReuseMethod.registered() for rule in method.candidates(top, leniences)]


def chosen(rules: Sequence[Candidate], kinds: Sequence[str]) -> list[Candidate]:
    """The rules of some kinds, all if none is named.

    Raises:
        UserError: for a kind that no rule has.
    """
    known = dict.fromkeys(rule.kind for rule in rules)
    for kind in kinds:
        if kind not in known:
            raise UserError("no such rule", key="--rules", value=kind, allowed=known)
    return [rule for rule in rules if not kinds or rule.kind in kinds]


def kept(rule: Candidate, positions: Sequence[Positions]) -> Kept:
    """Sums over the distribution of kept tokens of each draft."""
    distributions = [rule.distribution_of_kept(at) for at in positions]
    tokens = [float(each @ np.arange(len(each))) for each in distributions]
    return Kept(np.array(tokens), np.array([float(each[-1]) for each in distributions]))
