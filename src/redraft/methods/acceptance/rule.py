"""Acceptance rules: the distributions that a rule compares, and the two ways to keep a prefix of a draft.

Shapes in names: T tokens of the draft (n in formulas), K stored tokens of each position.
"""

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Self

import numpy as np

from redraft.rollout.engine import Residual


@dataclass(frozen=True, eq=False)
class Distributions:
    """Distribution q that a draft was sampled from and the current policy's p, both on the stored tokens S.

    S of a position depends on the tokens before it and not on the token sampled there, as the k most probable tokens
    do. q on S may have less mass than 1: a token outside S is rejected, which costs acceptance and not exactness.

    Attributes:
        tokens: integer (n,), the draft's tokens.
        log_p_T: float64 (n,), log p of each; -inf also for one that is not known to be in S.
        log_q_T: float64 (n,), log q of each.
        support: integer (n, k), S of each position; no token twice in a row.
        log_p_TK: float64 (n, k), log p of S; -inf also where it is not known, which takes the token out of S.
        log_q_TK: float64 (n, k), log q of S.

    Raises:
        ValueError: if shapes do not fit, or a log-probability is NaN.
    """

    tokens: np.ndarray
    log_p_T: np.ndarray
    log_q_T: np.ndarray
    support: np.ndarray
    log_p_TK: np.ndarray
    log_q_TK: np.ndarray

    def __post_init__(self) -> None:
        for name in ("log_p_T", "log_q_T", "log_p_TK", "log_q_TK"):
            # Engines and memory have float32; products over a long draft and sums over S are taken in float64.
            array = np.asarray(getattr(self, name), dtype=np.float64)
            object.__setattr__(self, name, array)
            whole = self.support.shape if name.endswith("_TK") else self.tokens.shape
            if array.shape != whole:
                raise ValueError(f"shapes do not fit: {name} is {array.shape}, not {whole}")
            if np.isnan(array).any():
                raise ValueError(f"log-probabilities must not be NaN: {name}")
        if self.tokens.ndim != 1 or self.support.ndim != 2 or len(self.support) != len(self.tokens):
            raise ValueError(f"shapes do not fit: tokens {self.tokens.shape}, support {self.support.shape}")

    @classmethod
    def of_tokens(cls, tokens: np.ndarray, log_p_T: np.ndarray, log_q_T: np.ndarray) -> Self:
        """Distributions of which the draft's tokens alone are known, each (n,); S is the draft's own token."""
        return cls(tokens, log_p_T, log_q_T, tokens[:, None], log_p_T[:, None], log_q_T[:, None])

    @classmethod
    def one_hot(cls, tokens: np.ndarray, log_p_T: np.ndarray) -> Self:
        """Distributions of a draft that is taken to be certain: q has all its mass on the draft's own token.

        A rule is then exact whatever the draft is, also one that the policy was trained on, since nothing is assumed
        about its distribution; it keeps about 1 / (1 - sum p^2) tokens (suffix decoding, arXiv 2411.04975, verifies
        like this). Nothing is stored, and nothing but the draft is scored.
        """
        return cls.of_tokens(tokens, log_p_T, np.zeros(len(tokens)))

    @classmethod
    def joined(cls, parts: Sequence[Self]) -> Self:
        """Distributions of a draft's leading tokens, from those of its chunks in order, one at least."""
        if len(parts) == 1:
            return parts[0]
        return cls(*(np.concatenate([getattr(part, field.name) for part in parts]) for field in fields(cls)))

    def excess(self, position: int) -> np.ndarray:
        """Log q / p of S at a position, float64 (k,); -inf where p is 0 or not known: nothing of it is accepted."""
        # Not computed where p is 0: the difference would be inf, or NaN if q is 0 there too.
        p, q = self.log_p_TK[position], self.log_q_TK[position]
        return np.subtract(q, p, out=np.full_like(p, -np.inf), where=~np.isneginf(p))

    @property
    def stored(self) -> np.ndarray:
        """True where the draft's token is in S, bool (n,)."""
        return (self.support == self.tokens[:, None]).any(axis=1)


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
        # `argmin` is the first False, but 0 if there is none, and it fails on an empty array.
        return len(accepted) if accepted.all() else int(accepted.argmin())

    def distribution_of_kept(self, acceptance: np.ndarray) -> np.ndarray:
        """Product of the probabilities so far, and of the next token's rejection."""
        # Entry i: tokens 1 to i are accepted and token i + 1 is not; the last entry is for the whole draft.
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
        # Entry i: no prefix longer than i is accepted.
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
