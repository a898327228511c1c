"""Signal-to-noise ratio of RLOO's gradient of one prompt: its bounds by the pass rate.

Source: SPEED-RL (arXiv 2506.09016), section 3 and Appendix A. A group is N independent responses to the prompt, each
with a reward of 0 or 1; p is the prompt's pass rate.
"""

import numpy as np


def leave_one_out_advantages(rewards: np.ndarray) -> np.ndarray:
    """Each reward less the mean of the group's other rewards (equation 8).

    Args:
        rewards: (N,), of one group.

    Returns:
        float64 (N,).

    Raises:
        ValueError: for fewer than 2 rewards.
    """
    size = len(rewards)
    if size < 2:
        raise ValueError(f"an advantage needs the rewards of other responses, got a group of {size}")
    of_others = (np.sum(rewards) - rewards) / (size - 1)
    return rewards - of_others


def snr_bound(p: float, size: int) -> float:
    """Upper bound of the ratio at any pass rate (the last line of Theorem 3.1's proof).

    1 / (1 / (N p (1 - p)) + (N - 2)(N - 3) / (N (N - 1)) - 1), and its limit 0 at p = 0 and p = 1. The proof holds from
    N = 2. A policy reaches the bound if all right responses have one score (gradient of the log-probability) and all
    wrong ones another, as of two arms.

    Args:
        p: pass rate.
        size: responses in a group, N.

    Raises:
        ValueError: for p outside [0, 1] or N < 2.
    """
    if not 0 <= p <= 1 or size < 2:
        raise ValueError(f"the bound holds for 0 <= p <= 1 and N >= 2, got p = {p}, N = {size}")
    scaled = size * p * (1 - p)
    return scaled / (1 + scaled * ((size - 2) * (size - 3) / (size * (size - 1)) - 1))


def simple_snr_bound(p: float, size: int) -> float:
    """Theorem 3.1's bound, 4 N p (1 - p) (equation 11), which is above `snr_bound` in its range.

    Args:
        p: pass rate.
        size: responses in a group, N.

    Raises:
        ValueError: outside the theorem's range, N >= 3 and p < 1/4 or p > 3/4.
    """
    if not (0 <= p < 1 / 4 or 3 / 4 < p <= 1) or size < 3:
        raise ValueError(f"the bound holds for N >= 3 and 0 <= p < 1/4 or 3/4 < p <= 1, got p = {p}, N = {size}")
    return 4 * size * p * (1 - p)
