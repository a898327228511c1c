"""Random Reuse, SPEC-RL's first variant (arXiv 2509.23232, §4.3): a draft is cut without looking at the policy."""

import math
from dataclasses import dataclass

import numpy as np

from redraft.methods.acceptance.rule import Distributions, FromTheLeft, checked


@dataclass(frozen=True)
class RandomCut(FromTheLeft):
    """Cut a draft at a token chosen uniformly, so that about half of it stays.

    The responses do not have the policy's distribution: a draft of one token is never kept, a longer one whatever p
    says of it.
    """

    stops_early = False  # a token's probability depends on the draft's length

    @staticmethod
    def cut(uniform: float, length: int) -> int:
        """Number of kept tokens, from 0 to the draft's length less one; 0 for an empty draft.

        Raises:
            ValueError: for a uniform outside (0, 1] or a negative length.
        """
        if not 0 < uniform <= 1 or length < 0:
            raise ValueError("uniforms must lie in (0, 1] and lengths must not be negative")
        # The ceiling is 1 to `length`, each with the same probability: the first token that is not kept.
        return max(math.ceil(uniform * length) - 1, 0)

    @staticmethod
    def of_length(length: int) -> np.ndarray:
        """Probability of each number of kept tokens, float64 (length + 1,), of a draft with at least one token."""
        return np.append(np.full(length, 1 / length), 0.0)

    def acceptance(self, drafts: Distributions) -> np.ndarray:
        """(n - 1 - i) / (n - i) for token i of n: of the drafts that reach it, those that are kept further."""
        # Entry i: probability that at least i tokens are kept.
        further = np.cumsum(self.of_length(len(drafts.tokens))[::-1])[::-1]
        return further[1:] / further[:-1]

    def accepts(self, drafts: Distributions, uniforms: np.ndarray) -> np.ndarray:
        """True up to the cut by a single uniform (1,)."""
        length = len(drafts.tokens)
        return np.arange(length) < self.cut(float(checked(uniforms, 1)[0]), length)
