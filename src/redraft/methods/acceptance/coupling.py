"""Gumbel coupling: policies sample by the same noise, so that near policies sample the same tokens (arXiv 2408.07978).

The responses have the policy's distribution, p. Every token is the argmax of log-probabilities plus Gumbel noise; the
draft is kept up to the first position where the current policy samples another token by the draft's own noise, and that
token continues the response. The result is what the policy samples from the first token on: the draft changes its cost.
Tokens agree with probability sum over v of 1 / sum over w of max(p_w / p_v, q_w / q_v), at least (1 - TV) / (1 + TV).

Stored: nothing; the noise is made again from its key (`redraft.rollout.streams`). Scored in addition to
the draft: the argmax over the vocabulary at each position.
"""

import numpy as np


def first_difference(tokens: np.ndarray, sampled: np.ndarray) -> int:
    """Index of the first draft token (n,) that differs from the policy's, `sampled` (n,), or the number of tokens.

    Raises:
        ValueError: if the shapes differ.
    """
    if tokens.shape != sampled.shape or tokens.ndim != 1:
        raise ValueError(f"shapes do not fit: {tokens.shape}, {sampled.shape}")
    differ = tokens != sampled
    return int(differ.argmax()) if differ.any() else len(tokens)
