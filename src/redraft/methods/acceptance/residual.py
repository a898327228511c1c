"""The residual rule: speculative sampling with an earlier policy as the drafter (arXiv 2211.17192, Appendix A.1)."""

import math
from dataclasses import dataclass

import numpy as np

from redraft.methods.acceptance.ratio import SpecRLRule
from redraft.methods.acceptance.rule import Distributions, FromTheLeft
from redraft.rollout.engine import Residual


@dataclass(frozen=True)
class ResidualRule(FromTheLeft):
    """Accept a token with probability min(1, l p / q); after a rejection sample from what p has left.

    The responses have the policy's distribution, p, if the draft was sampled from q. Of each token m = min(q, l p) is
    accepted, and after a rejection the token is sampled from p - m, normalised; both together are p, for each lenience
    l up to 1. Above 1, m may exceed p, and nothing repairs that.

    Stored: k tokens and log-probabilities a position, 8 k bytes. Scored in addition to the draft: S of each position.

    Attributes:
        lenience: l, above 0 and at most 1.

    Raises:
        ValueError: for another lenience.
    """

    lenience: float = 1.0

    def __post_init__(self) -> None:
        if not 0 < self.lenience <= 1:
            raise ValueError(f"a residual exists for 0 < lenience <= 1, got {self.lenience}")

    def acceptance(self, drafts: Distributions) -> np.ndarray:
        """min(1, l p / q), and 0 outside S."""
        return np.where(drafts.stored, SpecRLRule(self.lenience).acceptance(drafts), 0.0)

    def residual(self, drafts: Distributions, kept: int) -> Residual | None:
        """p - m at the position of the first rejection, where m / p = min(q / p, l)."""
        if kept == len(drafts.tokens):
            return None
        accepted = np.exp(np.minimum(drafts.excess(kept), math.log(self.lenience)))
        return Residual(drafts.support[kept], 1.0 - accepted)
