"""SPEED-RL's theorems as formulas, and as sums over all rewards that prove them (arXiv 2506.09016; docs/theory.md).

Section 3 and Appendix A bound the signal-to-noise ratio of RLOO's gradient of one prompt by the pass rate. A group is N
independent responses to the prompt, each with a reward of 0 or 1; p is the prompt's pass rate.

Theorem 4.1 and Appendix B give the objective that SPEED-RL optimises with RLOO's advantages. A prompt of pass rate p is
screened with N_init responses. If some but not all of them are right, it gets N_cont further ones and RLOO's gradient
of all N = N_init + N_cont; else its gradient is zero. The expectation of this gradient is Phi'(p) grad p.
"""

from itertools import product
from math import comb

import numpy as np


def leave_one_out_advantages(rewards: np.ndarray) -> np.ndarray:
    """Each reward (N,) less the mean of the group's other rewards, float64 (N,) (equation 8).

    Raises:
        ValueError: for fewer than 2 rewards.
    """
    size = len(rewards)
    if size < 2:
        raise ValueError(f"an advantage needs the rewards of other responses, got a group of {size}")
    # The sum of the others is the whole sum less the own reward.
    baselines = (np.sum(rewards) - rewards) / (size - 1)
    return rewards - baselines


def snr_bound(p: float, size: int) -> float:
    """Upper bound of the signal-to-noise ratio of a group of `size` at any pass rate (end of Theorem 3.1's proof).

    1 / (1 / (N p (1 - p)) + (N - 2)(N - 3) / (N (N - 1)) - 1), with its limit 0 at p = 0 and p = 1. The proof holds for
    N >= 2. A policy attains the bound if all right responses share one score (gradient of the log-probability) and all
    wrong ones another, as a bandit with two arms does.

    Raises:
        ValueError: for p outside [0, 1] or N < 2.
    """
    if not 0 <= p <= 1 or size < 2:
        raise ValueError(f"the bound holds for 0 <= p <= 1 and N >= 2, got p = {p}, N = {size}")
    # Multiplied out by N p (1 - p), so that the limits at p = 0 and 1 need no case.
    scaled = size * p * (1 - p)
    return scaled / (1 + scaled * ((size - 2) * (size - 3) / (size * (size - 1)) - 1))


def simple_snr_bound(p: float, size: int) -> float:
    """Theorem 3.1's bound, 4 N p (1 - p) (equation 11), which is above `snr_bound` in its range.

    Raises:
        ValueError: outside the theorem's range, N >= 3 and p < 1/4 or p > 3/4.
    """
    if not (0 <= p < 1 / 4 or 3 / 4 < p <= 1) or size < 3:
        raise ValueError(f"the bound holds for N >= 3 and 0 <= p < 1/4 or 3/4 < p <= 1, got p = {p}, N = {size}")
    return 4 * size * p * (1 - p)


def phi(p: float, n_init: int, n_cont: int) -> float:
    """Phi(p), the objective of a prompt, with the constant that makes Phi(0) zero.

    It rises from 0 to 1 - 2 N_cont / ((N - 1)(N_init + 1)).

    Raises:
        ValueError: for p outside [0, 1], N_init < 2 or N_cont < 1.
    """
    _check(p, n_init, n_cont)
    size = n_init + n_cont
    powers = p ** (n_init + 1) - (1 - p) ** (n_init + 1)
    mixed = (1 + n_init * p) * (1 - p) ** n_init - p**n_init * (n_init * (1 - p) + 1)
    constant = n_cont / ((size - 1) * (n_init + 1))
    share = n_cont / (size * (n_init + 1))
    return p - share * powers + share / (size - 1) * mixed - constant


def phi_derivative(p: float, n_init: int, n_cont: int) -> float:
    """Phi'(p), the weight of a prompt's gradient; N_init / N at p = 0 and p = 1, positive in between, at most 1.

    Raises:
        ValueError: for p outside [0, 1], N_init < 2 or N_cont < 1.
    """
    _check(p, n_init, n_cont)
    size = n_init + n_cont
    uniform = p**n_init + (1 - p) ** n_init
    mixed = p * (1 - p) ** (n_init - 1) + (1 - p) * p ** (n_init - 1)
    return 1 - n_cont / size * uniform - n_init * n_cont / (size * (size - 1)) * mixed


def weight_by_enumeration(p: float, n_init: int, n_cont: int, low: float = 0.0, high: float = 1.0) -> float:
    """The factor w in E[gradient] = w grad p by enumeration of a group's rewards, independent of the paper's formulas.

    Given their rewards, responses are independent, and advantages depend on rewards alone. So each response's score
    grad log pi(y) may be replaced by its mean given the response's reward. With p = sum of pi(y) over right y, that is
    sum of pi(y) / p * grad log pi(y) = grad p / p over right y, and -grad p / (1 - p) over wrong y, as all pi(y) sum
    to 1. A term of the sum is a number of right responses among the first N_init and one among the other N_cont, with
    its binomial probability; the gradient (equation 7) does not depend on which responses these are.

    Args:
        n_init: screening responses, 1 or more. With 1 no prompt can pass, and the factor is 0.
        n_cont: further responses to a prompt that passes.
        low: a prompt passes if its rate of right screening responses is above this (P_low of Algorithm 2) ...
        high: ... and below this (P_high). Theorem 4.1 has 0 < rate < 1.

    Raises:
        ValueError: for p outside (0, 1), N_init < 1 or N_cont < 1.
    """
    if not 0 < p < 1 or n_init < 1 or n_cont < 1:
        raise ValueError(
            f"needs 0 < p < 1, N_init >= 1 and N_cont >= 1, got p = {p}, N_init = {n_init}, N_cont = {n_cont}"
        )
    # Both bounds are strict, as in Algorithm 2.
    passing = [right for right in range(n_init + 1) if low < right / n_init < high]
    weight = 0.0
    for screening, continued in product(passing, range(n_cont + 1)):
        # equation 7 in units of grad p, with each score replaced by its mean
        rewards = np.arange(n_init + n_cont) < screening + continued
        scores = np.where(rewards, 1 / p, -1 / (1 - p))
        gradient = float(np.mean(leave_one_out_advantages(rewards.astype(float)) * scores))
        weight += _binomial(screening, n_init, p) * _binomial(continued, n_cont, p) * gradient
    return weight


def _binomial(right: int, size: int, p: float) -> float:
    """Probability of `right` right responses among `size`."""
    return comb(size, right) * p**right * (1 - p) ** (size - right)


def _check(p: float, n_init: int, n_cont: int) -> None:
    if n_init < 2:
        raise ValueError(f"N_init must be at least 2, got {n_init}: the rate of one response is 0 or 1")
    if not 0 <= p <= 1 or n_cont < 1:
        raise ValueError(f"needs 0 <= p <= 1 and N_cont >= 1, got p = {p}, N_cont = {n_cont}")
