"""SPEC-RL's rule with importance weights, with which its responses have the policy's distribution."""

import math
from dataclasses import dataclass

import numpy as np

from redraft.methods.acceptance.ratio import SpecRLRule
from redraft.methods.acceptance.rule import Distributions, FromTheLeft


@dataclass(frozen=True, eq=False)
class Weights:
    """Logarithms of importance weights of a response that goes on from a draft.

    Attributes:
        kept: float64 (kept,), of the tokens that are kept.
        support: integer (at most k,), S at the first rejection; empty after a draft that is kept whole.
        inside: of the token after them, if it is in S.
        outside: of the token after them, if it is not. Later tokens have weight 1.
    """

    kept: np.ndarray
    support: np.ndarray
    inside: float
    outside: float

    def after(self, token: int) -> float:
        """Log-weight of the first token after what is kept."""
        return self.inside if (self.support == token).any() else self.outside

    def of_response(self, sampled: np.ndarray) -> np.ndarray:
        """Log-weights of the kept tokens and of the tokens sampled after them, float32 (kept + sampled,)."""
        later = np.zeros(len(sampled))
        if len(sampled):
            later[0] = self.after(int(sampled[0]))
        return np.concatenate([self.kept, later]).astype(np.float32)


@dataclass(frozen=True)
class WeightedRule(FromTheLeft):
    """Accept a token with probability min(1, l p / q); after a rejection sample from p. Weights make up for it.

    With m = min(q, l p) on S and b = sum m, a kept token was sampled from m / b where p is wanted, so its weight is
    b p / m. The token after a rejection is sampled from p. Its weight is 1 in S and 1 / (1 - b) outside, where no token
    can be kept, times the weight of the rejected token, on which the rejection depends. The weights of a response
    multiply, also over visits: a draft with weights represents its own policy's distribution. With them the expectation
    of anything is that under p, for every lenience above 0 (`tests/test_weighted.py` enumerates it).

    These weights need the distributions at kept positions alone. The density of the whole response, which sums over all
    positions where a draft might have been cut, needs the draft's distribution after the cut too, of an earlier policy
    (`redraft.lab.audit.enumeration.two_state`).

    Stored: k tokens and log-probabilities a position, 8 k bytes, and a weight. Scored in addition to the draft: S.

    Attributes:
        lenience: l, above 0.

    Raises:
        ValueError: for another lenience.
    """

    lenience: float

    def __post_init__(self) -> None:
        if not 0 < self.lenience < math.inf:
            raise ValueError(f"weights exist for a finite lenience above 0, got {self.lenience}")

    def acceptance(self, drafts: Distributions) -> np.ndarray:
        """min(1, l p / q), and 0 outside S."""
        return np.where(drafts.stored, SpecRLRule(self.lenience).acceptance(drafts), 0.0)

    def weights(self, drafts: Distributions, kept: int, before: np.ndarray) -> Weights:
        """Weights of the response after `kept` tokens of a draft that has the log-weights `before`, float64 (n,)."""
        ell = math.log(self.lenience)
        # beta of each position; rounding can lift a sum of probabilities above 1.
        mass = np.exp(np.minimum(drafts.log_q_TK, ell + drafts.log_p_TK)).sum(axis=1).clip(max=1.0)
        # log(beta p / m), with p / m = max(p / q, 1 / l).
        own = np.log(mass[:kept]) + np.maximum(drafts.log_p_T[:kept] - drafts.log_q_T[:kept], -ell)
        if kept == len(drafts.tokens):
            # Without a rejection all further tokens are sampled from p and have weight 1.
            return Weights(before + own, drafts.support[:0].reshape(-1), 0.0, 0.0)
        rejected, missed = float(before[kept]), 1.0 - float(mass[kept])
        # At beta = 1 nothing is rejected, up to rounding, and 1 / (1 - beta) has no value.
        outside = rejected - math.log(missed) if missed > 0 else rejected
        # A token whose p the engine did not report is not in S: it could not have been kept.
        support = drafts.support[kept][~np.isneginf(drafts.log_p_TK[kept])]
        return Weights(before[:kept] + own, support, rejected, outside)
