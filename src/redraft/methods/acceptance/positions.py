"""What `redraft predict` knows of saved drafts, position by position."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from redraft.methods.acceptance.rule import Distributions, Rule

NOWHERE = -1
"""A token that no vocabulary has."""


@dataclass(frozen=True, eq=False)
class BothDistributions:
    """What follows from the whole distributions p and q at each of a draft's positions, float64 (n,) unless stated.

    Attributes:
        drafter: log q of the token by the drafter's model; what is stored with it may differ by rounding.
        overlap: sum of min(p, q), which is 1 - TV.
        same: probability that p samples the draft's token by the noise by which q sampled it.
        in_top: bool, true where the token is among the most probable of q.
        block: acceptance probabilities of block verification with the whole of q stored.
        block_top: the same with the most probable tokens of q stored.
    """

    drafter: np.ndarray
    overlap: np.ndarray
    same: np.ndarray
    in_top: np.ndarray
    block: np.ndarray
    block_top: np.ndarray


@dataclass(frozen=True, eq=False)
class Positions:
    """A draft under the current policy p and the distribution q that it was sampled from.

    Attributes:
        tokens: integer (n,).
        log_p_T: float64 (n,), log p of each.
        log_q_T: float64 (n,), log q of each, as stored.
        both: what needs the whole distributions; None where the drafter's is not known.
    """

    tokens: np.ndarray
    log_p_T: np.ndarray
    log_q_T: np.ndarray
    both: BothDistributions | None

    @property
    def drafts(self) -> Distributions:
        """Distributions at the draft's own tokens; a rule that accepts from the left needs no other."""
        return Distributions.of_tokens(self.tokens, self.log_p_T, self.log_q_T)

    @property
    def of_top(self) -> Distributions:
        """The same with only the most probable tokens of q stored."""
        # A rule that accepts from the left asks only whether the draft's own token is in S.
        support = np.where(self.whole.in_top, self.tokens, NOWHERE)[:, None]
        log_p_T1, log_q_T1 = self.log_p_T[:, None], self.log_q_T[:, None]
        return Distributions(self.tokens, self.log_p_T, self.log_q_T, support, log_p_T1, log_q_T1)

    @property
    def whole(self) -> BothDistributions:
        """What needs the whole distributions.

        Raises:
            ValueError: if the drafter's is not known.
        """
        if self.both is None:
            raise ValueError("the drafter's distribution is not known")
        return self.both


def kept_by(rule: Rule) -> Callable[[Positions], np.ndarray]:
    """Distribution of a rule's kept tokens, float64 (n + 1,), from the draft's own tokens."""
    return lambda at: rule.distribution_of_kept(rule.acceptance(at.drafts))
