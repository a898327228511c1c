"""Random Reuse, SPEC-RL's first variant (arXiv 2509.23232, §4.3): a draft is cut without looking at the policy."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from redraft.methods.acceptance.laws import Laws
from redraft.methods.acceptance.rule import FromTheLeft
from redraft.rollout.engine import Residual


def random_rejection(uniforms: ArrayLike, lengths: ArrayLike) -> np.ndarray:
    """Cut each draft at a token drawn uniformly, so that about half of it stays.

    Args:
        uniforms: one on (0, 1] a draft, (drafts,).
        lengths: tokens of each draft, integer, (drafts,).

    Returns:
        int64, (drafts,), each between 0 and the draft's length less one; 0 for an empty draft.

    Raises:
        ValueError: for a uniform outside (0, 1], a negative length, or shapes that do not fit.
    """
    u, length = np.asarray(uniforms, dtype=np.float64), np.asarray(lengths, dtype=np.int64)
    if u.ndim != 1 or u.shape != length.shape:
        raise ValueError(f"shapes do not fit: {u.shape}, {length.shape}")
    if not ((u > 0) & (u <= 1)).all() or (length < 0).any():
        raise ValueError("uniforms must lie in (0, 1] and lengths must not be negative")
    return np.maximum(np.ceil(u * length).astype(np.int64) - 1, 0)


def law_of_random_cut(length: int) -> np.ndarray:
    """Probability of each number of kept tokens, float64 (length + 1,), of a draft with at least one token."""
    return np.append(np.full(length, 1 / length), 0.0)


@dataclass(frozen=True)
class RandomCut(FromTheLeft):
    """Random Reuse as a `Rule`, for its law; `random_rejection` is what it is trained with.

    Law: not the policy's, p; a draft of one token is never kept, a longer one whatever p says of it.
    """

    stops_early = False  # a token's chance depends on the draft's length

    def chances(self, laws: Laws) -> np.ndarray:
        """(n - 1 - i) / (n - i) for the token i of n: of the drafts that reach it, those that are kept further."""
        further = np.cumsum(law_of_random_cut(len(laws.tokens))[::-1])[::-1]
        return further[1:] / further[:-1]

    def behind(self, laws: Laws, kept: int) -> Residual | None:
        """The policy's law."""
        return None
