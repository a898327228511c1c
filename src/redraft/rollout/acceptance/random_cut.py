"""Random Reuse, SPEC-RL's first variant (arXiv 2509.23232, §4.3): a draft is cut without looking at the policy."""

import numpy as np
from numpy.typing import ArrayLike


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
