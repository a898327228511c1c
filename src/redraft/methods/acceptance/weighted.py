"""SPEC-RL's rule with importance weights: its responses do not have the policy's law, their weighted law does."""

import math
from dataclasses import dataclass

import numpy as np

from redraft.methods.acceptance.laws import Laws
from redraft.methods.acceptance.residual import ratios
from redraft.methods.acceptance.rule import FromTheLeft
from redraft.rollout.engine import Residual


@dataclass(frozen=True, eq=False)
class Weights:
    """Logarithms of importance weights of a response that goes on from a draft.

    Attributes:
        kept: float64 (kept,), of the tokens that are kept.
        support: integer (at most k,), S at the place of the first rejection; empty behind a draft that is kept whole.
        inside: of the token behind them, if it is in S.
        outside: of the token behind them, if it is not. Later tokens have weight 1.
    """

    kept: np.ndarray
    support: np.ndarray
    inside: float
    outside: float

    def behind(self, token: int) -> float:
        """Log-weight of the first token behind what is kept."""
        return self.inside if (self.support == token).any() else self.outside


@dataclass(frozen=True)
class WeightedRule(FromTheLeft):
    """Accept a token with probability min(1, l p / q); behind a rejection draw from p. Weights make up for it.

    Law: with m = min(q, l p) on S and b = sum m, a kept token has the law m / b where p is asked for, so its weight is
    b p / m. The token behind a rejection is drawn from p. Its weight is 1 in S and 1 / (1 - b) outside, where no token
    can be kept, times the weight of the rejected token, on which the rejection depends. The weights of a response
    multiply, also over visits: a draft with weights stands for the law of its own policy. With them the expectation
    of anything is that under p, for every lenience above 0 (`tests/test_weighted.py` enumerates it).

    These weights need the laws of kept positions alone. The density of the whole response, which sums over all places
    where a draft might have been cut, needs the draft's law behind the cut too, of an earlier policy
    (`redraft.lab.audit.enumeration.two_state`).

    Stored: k tokens and log-probabilities a position, 8 k bytes, and a weight. Scored beside the draft: S.

    Attributes:
        lenience: l, above 0.

    Raises:
        ValueError: for another lenience.
    """

    lenience: float

    def __post_init__(self) -> None:
        if not 0 < self.lenience < math.inf:
            raise ValueError(f"weights exist for a finite lenience above 0, got {self.lenience}")

    def chances(self, laws: Laws) -> np.ndarray:
        """min(1, l p / q), and 0 outside S."""
        return np.where(laws.stored, ratios(laws, self.lenience), 0.0)

    def behind(self, laws: Laws, kept: int) -> Residual | None:
        """The policy's law."""
        return None

    def weights(self, laws: Laws, kept: int, before: np.ndarray) -> Weights:
        """Weights of the response behind so many kept tokens.

        Args:
            laws: at the draft's places.
            kept: number of its tokens that are kept.
            before: float64 (n,), log-weights of the draft.
        """
        ell = math.log(self.lenience)
        mass = np.exp(np.minimum(laws.drawn_from_at, ell + laws.policy_at)).sum(axis=1).clip(max=1.0)
        own = np.log(mass[:kept]) + np.maximum(laws.policy[:kept] - laws.drawn_from[:kept], -ell)
        if kept == len(laws.tokens):
            return Weights(before + own, laws.support[:0].reshape(-1), 0.0, 0.0)
        rejected, missed = float(before[kept]), 1.0 - float(mass[kept])
        outside = rejected - math.log(missed) if missed > 0 else rejected
        support = laws.support[kept][~np.isneginf(laws.policy_at[kept])]
        return Weights(before[:kept] + own, support, rejected, outside)
