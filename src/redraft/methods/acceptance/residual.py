"""The residual rule: speculative sampling with an earlier policy as the drafter (arXiv 2211.17192, Appendix A.1)."""

import math
from dataclasses import dataclass

import numpy as np

from redraft.methods.acceptance.laws import Laws
from redraft.methods.acceptance.rule import FromTheLeft
from redraft.rollout.engine import Residual


@dataclass(frozen=True)
class ResidualRule(FromTheLeft):
    """Accept a token with probability min(1, l p / q); behind a rejection draw from what p has left.

    Law: the policy's, p, of a draft that was drawn from q. Of each token m = min(q, l p) is accepted, and behind a
    rejection the token is drawn from p - m, normalised; both together are p, for each lenience l up to 1. Above 1, m
    may exceed p, and nothing repairs that.

    Stored: k tokens and log-probabilities a position, 8 k bytes. Scored beside the draft: S of each position.

    Attributes:
        lenience: l, above 0 and at most 1.

    Raises:
        ValueError: for another lenience.
    """

    lenience: float = 1.0

    def __post_init__(self) -> None:
        if not 0 < self.lenience <= 1:
            raise ValueError(f"a residual exists for 0 < lenience <= 1, got {self.lenience}")

    def chances(self, laws: Laws) -> np.ndarray:
        """min(1, l p / q), and 0 outside S."""
        return np.where(laws.stored, ratios(laws, self.lenience), 0.0)

    def behind(self, laws: Laws, kept: int) -> Residual | None:
        """p - m at the place of the first rejection, where m / p = min(q / p, l)."""
        if kept == len(laws.tokens):
            return None
        accepted = np.exp(np.minimum(laws.excess(kept), math.log(self.lenience)))
        return Residual(laws.support[kept], 1.0 - accepted)


@dataclass(frozen=True)
class PublishedRule(FromTheLeft):
    """SPEC-RL's rule (arXiv 2509.23232, equation 3) as a `Rule`, for its law; `ratio.py` has it as it is trained with.

    Law: not p. Behind a rejection the token is drawn from p itself, so that at l = 1 a token has the law
    m + (1 - sum m) p. Stored: nothing but the draft's log-probabilities.

    Attributes:
        lenience: l, at least 0.
    """

    lenience: float = 1.0

    def chances(self, laws: Laws) -> np.ndarray:
        """min(1, l p / q)."""
        return ratios(laws, self.lenience)

    def behind(self, laws: Laws, kept: int) -> Residual | None:
        """The policy's law."""
        return None


def ratios(laws: Laws, lenience: float) -> np.ndarray:
    """min(1, l p / q) of the draft's tokens, float64 (n,); 0 where p is 0."""
    if lenience == 0:
        return np.zeros(len(laws.tokens))
    with np.errstate(invalid="ignore"):
        logarithms = math.log(lenience) + laws.policy - laws.drawn_from
    return np.where(np.isneginf(laws.policy), 0.0, np.exp(np.minimum(logarithms, 0.0)))
