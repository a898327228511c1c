"""Rules that keep a prefix of a draft token by token, and the two ways to do so."""

import numpy as np

from redraft.methods.acceptance.distributions import Distributions
from redraft.rollout.engine import Residual


class Rule:
    """A rule. The distribution of responses follows from these methods alone; `redraft audit` sums over them.

    Training decides by `kept(accepts(...))`, audit and prediction sum by `distribution_of_kept(acceptance(...))`.
    """

    stops_early: bool
    """True if nothing after the first rejected token matters: a draft may then be judged in chunks, up to the one with
    the rejection, each by its own distributions."""

    def acceptance(self, drafts: Distributions) -> np.ndarray:
        """Probability that each token is accepted, float64 (n,)."""
        raise NotImplementedError

    def accepts(self, drafts: Distributions, uniforms: np.ndarray) -> np.ndarray:
        """True where the uniform, one of n independent ones, is at most the acceptance probability, bool (n,).

        Raises:
            ValueError: for a uniform outside (0, 1], or another number of them.
        """
        return checked(uniforms, len(drafts.tokens)) <= self.acceptance(drafts)

    def kept(self, accepted: np.ndarray) -> int:
        """Number of leading tokens that are kept, of bool (n,)."""
        raise NotImplementedError

    def distribution_of_kept(self, acceptance: np.ndarray) -> np.ndarray:
        """Probability of each number of kept tokens, float64 (n + 1,)."""
        raise NotImplementedError

    def residual(self, drafts: Distributions, kept: int) -> Residual | None:
        """Distribution of the token after `kept` tokens; None for the policy's, as after a draft that is kept whole."""
        return None


class FromTheLeft(Rule):
    """Tokens are kept up to the first one that is rejected."""

    stops_early = True

    def kept(self, accepted: np.ndarray) -> int:
        """Index of the first rejected token, or the draft's length."""
        return len(accepted) if accepted.all() else int(accepted.argmin())

    def distribution_of_kept(self, acceptance: np.ndarray) -> np.ndarray:
        """Product of the probabilities so far, and of the next token's rejection."""
        return np.cumprod(np.append(1.0, acceptance)) * np.append(1.0 - acceptance, 1.0)


class LongestPrefix(Rule):
    """The longest prefix whose last token is accepted is kept, also where tokens within it are rejected."""

    stops_early = False

    def kept(self, accepted: np.ndarray) -> int:
        """Index after the last accepted token, or 0."""
        found = np.flatnonzero(accepted)
        return int(found[-1]) + 1 if len(found) else 0

    def distribution_of_kept(self, acceptance: np.ndarray) -> np.ndarray:
        """Product of the probability, and of all later rejections."""
        later = np.cumprod(np.append(1.0, (1.0 - acceptance)[::-1]))[::-1]
        return np.append(1.0, acceptance) * later


def checked(uniforms: np.ndarray, count: int) -> np.ndarray:
    """The uniforms, if there are `count` on (0, 1].

    Raises:
        ValueError: if there are not.
    """
    if uniforms.shape != (count,) or not ((uniforms > 0) & (uniforms <= 1)).all():
        raise ValueError("a draft needs one uniform on (0, 1] a token")
    return uniforms
