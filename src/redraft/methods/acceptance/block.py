"""Block verification: the tokens of a draft are accepted jointly (Sun et al., arXiv 2403.10444, Algorithm 2)."""

import math
from dataclasses import dataclass

import numpy as np

from redraft.methods.acceptance.rule import Distributions, LongestPrefix
from redraft.rollout.engine import Residual

ROUNDING = 1e-12
"""Mass outside S below this is what a sum over the whole vocabulary leaves."""


@dataclass(frozen=True)
class BlockRule(LongestPrefix):
    """Keep the longest prefix that is accepted; among exact rules none keeps more tokens in expectation, they prove.

    The responses have the policy's distribution, p, if the draft was sampled from q. With w_0 = 1 and
    w_i = min(1, w_(i-1) p(y_i) / q(y_i)), each prefix of i < n tokens is accepted with probability

        h_i = R_i / (R_i + 1 - w_i),   R_i = sum over x of max(w_i p(x) - q(x), 0), distributions at position i + 1,

    and the whole draft with probability w_n. After a prefix the token is sampled from max(w_i p - q, 0), normalised. A
    token outside S has w = 0, and q counts as 0 outside S: the rule takes the draft to end there in a token that p
    never samples.

    Stored: k tokens and log-probabilities a position, 8 k bytes. Scored in addition to the draft: S of each position.
    """

    def acceptance(self, drafts: Distributions) -> np.ndarray:
        """h_1 to h_(n-1), and w_n.

        Where R_i and 1 - w_i are both 0, p and q are equal after i. A longer prefix is then accepted for certain, and
        i itself must not be, since it leaves nothing to sample from.
        """
        weights = _weights_of(drafts)
        before = weights[:-1]
        # R_i compares the distributions at position i + 1, so those at the first position are not needed.
        p, q = np.exp(drafts.log_p_TK[1:]), np.exp(drafts.log_q_TK[1:])
        # q counts as 0 outside S, so all of w p is left there.
        outside = 1.0 - p.sum(axis=1)
        outside[outside < ROUNDING] = 0.0
        # R_1 to R_(n-1), the sum over the whole vocabulary.
        rest = np.maximum(before[:, None] * p - q, 0.0).sum(axis=1) + before * outside
        return joint_acceptance(weights, rest)

    def residual(self, drafts: Distributions, kept: int) -> Residual | None:
        """max(w p - q, 0) after the kept prefix, whose w is above 0: p less min(q / w, p)."""
        if kept == len(drafts.tokens):
            return None
        weight = _weights_of(drafts)[kept - 1] if kept else 1.0
        # As a share of p: 1 - min(q / (w p), 1), which no scaling by w changes.
        accepted = np.exp(np.minimum(drafts.excess(kept) - math.log(weight), 0.0))
        return Residual(drafts.support[kept], 1.0 - accepted)


def joint_weights(log_p_T: np.ndarray, log_q_T: np.ndarray, stored: np.ndarray, weight: float = 1.0) -> np.ndarray:
    """w of each token, float64 (n,).

    Args:
        log_p_T: float64 (n,), log p of each.
        log_q_T: float64 (n,), log q of each.
        stored: bool (n,), true where the token is in S.
        weight: w before the first of them.
    """
    # A ratio may overflow where q is tiny; w is bounded by 1 all the same.
    with np.errstate(over="ignore", invalid="ignore"):
        growth = np.where(stored & ~np.isneginf(log_p_T), np.exp(log_p_T - log_q_T), 0.0)
    weights = np.empty(len(growth))
    for position, factor in enumerate(growth):
        # 0 times an infinite factor would be NaN; w stays 0 once it is 0.
        weight = min(weight * factor, 1.0) if weight else 0.0
        weights[position] = weight
    return weights


def joint_acceptance(weights: np.ndarray, rest: np.ndarray) -> np.ndarray:
    """Acceptance probabilities of a draft, float64 (n,), from w_1 to w_n and R_1 to R_(n-1)."""
    whole = rest + 1.0 - weights[:-1]
    # 0 instead of 0 / 0 where p and q are equal at the next position (`BlockRule.acceptance`).
    inner = np.divide(rest, whole, out=np.zeros_like(rest), where=whole > 0)
    return np.append(inner, weights[-1:])


def _weights_of(drafts: Distributions) -> np.ndarray:
    """w_1 to w_n, float64 (n,)."""
    return joint_weights(drafts.log_p_T, drafts.log_q_T, drafts.stored)
