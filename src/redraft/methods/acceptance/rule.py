"""Interface of rules that keep a prefix of a draft by chances, and the two ways to do so."""

from typing import Protocol

import numpy as np

from redraft.methods.acceptance.laws import Laws
from redraft.rollout.engine import Residual


class Rule(Protocol):
    """A rule. What it does to the law of responses follows from its methods alone (`redraft audit` enumerates it)."""

    stops_early: bool
    """True if nothing behind the first rejected token matters: a draft may then be judged in chunks, up to the one that
    holds the cut, each by its own laws."""

    def chances(self, laws: Laws) -> np.ndarray:
        """Probability that each token is accepted, float64 (n,)."""
        ...

    def kept(self, chances: np.ndarray, uniforms: np.ndarray) -> int:
        """Number of leading tokens that are kept.

        Args:
            chances: float64 (n,).
            uniforms: float64 (n,) on (0, 1], independent.
        """
        ...

    def law_of_kept(self, chances: np.ndarray) -> np.ndarray:
        """Probability of each number of kept tokens, float64 (n + 1,)."""
        ...

    def behind(self, laws: Laws, kept: int) -> Residual | None:
        """Law of the token behind so many that are kept; the policy's if None, as behind a draft that is kept whole."""
        ...


class FromTheLeft:
    """Tokens are kept up to the first one that is rejected."""

    stops_early = True

    def kept(self, chances: np.ndarray, uniforms: np.ndarray) -> int:
        """Index of the first rejected token, or the draft's length."""
        rejected = ~_accepted(chances, uniforms)
        return int(rejected.argmax()) if rejected.any() else len(rejected)

    def law_of_kept(self, chances: np.ndarray) -> np.ndarray:
        """Product of the chances so far, and of the next one's rejection."""
        return np.cumprod(np.append(1.0, chances)) * np.append(1.0 - chances, 1.0)


class LongestPrefix:
    """The longest prefix whose last token is accepted is kept, also where tokens within it are rejected."""

    stops_early = False

    def kept(self, chances: np.ndarray, uniforms: np.ndarray) -> int:
        """Index behind the last accepted token, or 0."""
        accepted = np.flatnonzero(_accepted(chances, uniforms))
        return int(accepted[-1]) + 1 if len(accepted) else 0

    def law_of_kept(self, chances: np.ndarray) -> np.ndarray:
        """Product of the chance, and of all later rejections."""
        later = np.cumprod(np.append(1.0, (1.0 - chances)[::-1]))[::-1]
        return np.append(1.0, chances) * later


def _accepted(chances: np.ndarray, uniforms: np.ndarray) -> np.ndarray:
    if uniforms.shape != chances.shape or not ((uniforms > 0) & (uniforms <= 1)).all():
        raise ValueError("a draft needs one uniform on (0, 1] a token")
    return uniforms <= chances
