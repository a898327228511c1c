"""SPEC-RL's acceptance of a draft under the current policy (arXiv 2509.23232, equation 3).

Token i of the draft is accepted with probability min(1, l * p_new(i) / p_old(i)), where l is the lenience; the
draft is kept up to the first token that is not. Everything happens in logarithms, so that no ratio overflows.
"""

import math

import numpy as np
from numpy.typing import ArrayLike


def first_rejection(
    new_log_probs: ArrayLike, old_log_probs: ArrayLike, uniforms: ArrayLike, lengths: ArrayLike, lenience: float
) -> np.ndarray:
    """Index of each draft's first rejected token, or the draft's length if none is rejected.

    A token whose new probability is zero is rejected, one whose old probability alone is zero accepted, as the
    limit of the ratio demands. A lenience of infinity is full reuse: it accepts every token, also an impossible one.

    Args:
        new_log_probs: log-probabilities under the current policy, float, (drafts, tokens).
        old_log_probs: log-probabilities under the policy that drew the tokens, float, (drafts, tokens).
        uniforms: independent uniforms on (0, 1], (drafts, tokens).
        lengths: valid tokens of each draft, integer, (drafts,); what lies beyond is ignored.
        lenience: l of equation (3), at least 0.

    Returns:
        int64, (drafts,), each between 0 and the draft's length.

    Raises:
        ValueError: for a lenience that is negative or NaN, a NaN log-probability or a uniform outside (0, 1] within
            a draft, or shapes that do not fit.
    """
    new = np.asarray(new_log_probs, dtype=np.float64)
    old = np.asarray(old_log_probs, dtype=np.float64)
    u = np.asarray(uniforms, dtype=np.float64)
    length = np.asarray(lengths, dtype=np.int64)
    valid = _checked(new, old, u, length, lenience)
    if math.isinf(lenience):
        return length.copy()
    rejected = valid & ~_accepted(new, old, u, lenience)
    cut = np.where(rejected.any(axis=1), rejected.argmax(axis=1), length) if rejected.shape[1] else length
    return cut.astype(np.int64)


def _accepted(new: np.ndarray, old: np.ndarray, u: np.ndarray, lenience: float) -> np.ndarray:
    if lenience == 0:
        return np.zeros_like(new, dtype=bool)
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.isfinite(new) & (np.log(u) <= math.log(lenience) + new - old)


def _checked(new: np.ndarray, old: np.ndarray, u: np.ndarray, length: np.ndarray, lenience: float) -> np.ndarray:
    """Mask of valid tokens, bool (drafts, tokens), of inputs that are consistent."""
    if math.isnan(lenience) or lenience < 0:
        raise ValueError(f"lenience must be >= 0, got {lenience}")
    if new.ndim != 2 or new.shape != old.shape or new.shape != u.shape or length.shape != new.shape[:1]:
        raise ValueError(f"shapes do not fit: {new.shape}, {old.shape}, {u.shape}, {length.shape}")
    if length.size and (length.min() < 0 or length.max() > new.shape[1]):
        raise ValueError(f"lengths must lie between 0 and {new.shape[1]}")
    valid = np.arange(new.shape[1]) < length[:, None]
    if np.isnan(new[valid]).any() or np.isnan(old[valid]).any():
        raise ValueError("log-probabilities must not be NaN")
    if not ((u[valid] > 0) & (u[valid] <= 1)).all():
        raise ValueError("uniforms must lie in (0, 1]")
    return valid
