"""SPEC-RL's rule (arXiv 2509.23232, equation 3): it accepts a token with probability min(1, l p / q).

Everything happens in logarithms, so that no ratio overflows.
"""

import math
from dataclasses import dataclass

import numpy as np

from redraft.methods.acceptance.rule import Distributions, FromTheLeft, checked


@dataclass(frozen=True)
class SpecRLRule(FromTheLeft):
    """Accept a token with probability min(1, l p / q); after a rejection sample from p.

    The responses do not have the policy's distribution: at l = 1 a token has m + (1 - sum m) p with m = min(q, p).
    Stored: nothing but the draft's log-probabilities. The residual and the weighted rule call it, so that a change here
    changes them, too.

    A token with p = 0 is rejected, one with q = 0 alone accepted, as the limit of the ratio demands. An infinite
    lenience is full reuse: it accepts every token, also an impossible one.

    Attributes:
        lenience: l, at least 0.

    Raises:
        ValueError: for a lenience that is negative or NaN.
    """

    lenience: float = 1.0

    def __post_init__(self) -> None:
        if math.isnan(self.lenience) or self.lenience < 0:
            raise ValueError(f"lenience must be >= 0, got {self.lenience}")

    def log_acceptance(self, drafts: Distributions) -> np.ndarray:
        """Logarithm of the acceptance probabilities, float64 (n,)."""
        # `math.log` rejects 0, and an infinite log l plus log p = -inf is NaN.
        if self.lenience in (0, math.inf):
            return np.full(len(drafts.tokens), 0.0 if self.lenience else -np.inf)
        with np.errstate(invalid="ignore"):
            ratio = math.log(self.lenience) + drafts.log_p_T - drafts.log_q_T
        # p = 0 is rejected also where q is 0: the difference of two infinities is NaN.
        return np.where(np.isfinite(drafts.log_p_T), np.minimum(ratio, 0.0), -np.inf)

    def acceptance(self, drafts: Distributions) -> np.ndarray:
        """min(1, l p / q)."""
        return np.exp(self.log_acceptance(drafts))

    def accepts(self, drafts: Distributions, uniforms: np.ndarray) -> np.ndarray:
        """True where log u <= log l + log p - log q."""
        return np.log(checked(uniforms, len(drafts.tokens))) <= self.log_acceptance(drafts)
