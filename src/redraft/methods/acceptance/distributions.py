"""Distributions at a draft's positions, as far as they are stored."""

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Self

import numpy as np


@dataclass(frozen=True, eq=False)
class Distributions:
    """Distribution q that a draft was sampled from and the current policy's p, both on the stored tokens S.

    S of a position depends on the tokens before it and not on the token sampled there, as the k most probable tokens
    do. q on S may have less mass than 1: a token outside S is rejected, which costs acceptance and not exactness.

    Attributes:
        tokens: integer (n,), the draft's tokens.
        policy: float64 (n,), log p of each; -inf also for one that is not known to be in S.
        drawn_from: float64 (n,), log q of each.
        support: integer (n, k), S of each position; no token twice in a row.
        policy_at: float64 (n, k), log p of S; -inf also where it is not known, which takes the token out of S.
        drawn_from_at: float64 (n, k), log q of S.

    Raises:
        ValueError: if shapes do not fit, or a log-probability is NaN.
    """

    tokens: np.ndarray
    policy: np.ndarray
    drawn_from: np.ndarray
    support: np.ndarray
    policy_at: np.ndarray
    drawn_from_at: np.ndarray

    def __post_init__(self) -> None:
        for name in ("policy", "drawn_from", "policy_at", "drawn_from_at"):
            array = np.asarray(getattr(self, name), dtype=np.float64)
            object.__setattr__(self, name, array)
            whole = self.support.shape if name.endswith("_at") else self.tokens.shape
            if array.shape != whole:
                raise ValueError(f"shapes do not fit: {name} is {array.shape}, not {whole}")
            if np.isnan(array).any():
                raise ValueError(f"log-probabilities must not be NaN: {name}")
        if self.tokens.ndim != 1 or self.support.ndim != 2 or len(self.support) != len(self.tokens):
            raise ValueError(f"shapes do not fit: tokens {self.tokens.shape}, support {self.support.shape}")

    @classmethod
    def of_tokens(cls, tokens: np.ndarray, policy: np.ndarray, drawn_from: np.ndarray) -> Self:
        """Distributions of which the draft's tokens alone are known, each (n,); S is the draft's own token."""
        return cls(tokens, policy, drawn_from, tokens[:, None], policy[:, None], drawn_from[:, None])

    @classmethod
    def one_hot(cls, tokens: np.ndarray, policy: np.ndarray) -> Self:
        """Distributions of a draft that is taken to be certain: q has all its mass on the draft's own token.

        A rule is then exact whatever the draft is, also one that the policy was trained on, since nothing is assumed
        about its distribution; it keeps about 1 / (1 - sum p^2) tokens (suffix decoding, arXiv 2411.04975, verifies
        like this). Nothing is stored, and nothing but the draft is scored.
        """
        return cls.of_tokens(tokens, policy, np.zeros(len(tokens)))

    @classmethod
    def joined(cls, parts: Sequence[Self]) -> Self:
        """Distributions of a draft's leading tokens, from those of its chunks in order, one at least."""
        if len(parts) == 1:
            return parts[0]
        return cls(*(np.concatenate([getattr(part, field.name) for part in parts]) for field in fields(cls)))

    def excess(self, position: int) -> np.ndarray:
        """Log q / p of S at a position, float64 (k,); -inf where p is 0 or not known: nothing of it is accepted."""
        p, q = self.policy_at[position], self.drawn_from_at[position]
        return np.subtract(q, p, out=np.full_like(p, -np.inf), where=~np.isneginf(p))

    @property
    def stored(self) -> np.ndarray:
        """True where the draft's token is in S, bool (n,)."""
        return (self.support == self.tokens[:, None]).any(axis=1)
