"""Times of forward passes, and the speedup of speculation that follows (EfficientRollout, arXiv 2606.18967).

A pass takes the longer of its memory reads and its arithmetic, plus a residual time per sequence (equation 2, section
4.2). Functions take scalars or arrays that broadcast:

    batch   number of decoding sequences, B
    length  their mean length with the prompt, tokens, S
    gamma   tokens of a draft, γ
"""

from typing import TypeAlias

import numpy as np

from redraft.selfspec.calibration import Calibration

Numbers: TypeAlias = float | np.ndarray
MICROSECOND = 1e-6
HALVINGS = 50
"""Bisections of the interval [0, 1] of acceptance probabilities: to the precision of a double."""
MARGIN = 0.05
"""The paper's δ: speculation is switched on at a predicted speedup of 1 + δ (Appendix E.3)."""


def target_seconds(calibration: Calibration, batch: Numbers, length: Numbers) -> np.ndarray:
    """T_T: the target computes one token of every sequence, s."""
    weights = calibration.costs.target_bytes
    return _pass_seconds(calibration, weights, calibration.target_overhead, batch, length)


def draft_seconds(calibration: Calibration, batch: Numbers, length: Numbers) -> np.ndarray:
    """T_D: the drafter computes one token of every sequence, s; η_d multiplies its weights, not keys and values."""
    weights = calibration.draft_factor * calibration.costs.draft_bytes
    return _pass_seconds(calibration, weights, calibration.draft_overhead, batch, length)


def verify_seconds(calibration: Calibration, batch: Numbers, length: Numbers, gamma: Numbers) -> np.ndarray:
    """T_V: verification of γ drafted tokens of every sequence, s; the target's reads, γ + 1 times its operations."""
    weights = calibration.costs.target_bytes
    return _pass_seconds(calibration, weights, calibration.verify_overhead, batch, length, gamma + 1)


def _pass_seconds(
    calibration: Calibration, weights: float, overhead: float, batch: Numbers, length: Numbers, tokens: Numbers = 1
) -> np.ndarray:
    """A pass over `tokens` tokens of every sequence that reads `weights` bytes besides keys and values, s."""
    costs = calibration.costs
    reading = (weights + calibration.kv_bytes * batch * length) / calibration.bandwidth
    operations = tokens * (batch * (costs.dense_flops + costs.attention_flops * length))
    return np.maximum(reading, operations / calibration.flops) + overhead * MICROSECOND * batch


def block_seconds(calibration: Calibration, batch: Numbers, length: Numbers, gamma: Numbers) -> np.ndarray:
    """T_SD: γ drafted tokens and their verification, s (equation 1)."""
    drafting = gamma * draft_seconds(calibration, batch, length)
    return drafting + verify_seconds(calibration, batch, length, gamma)


def block_efficiency(alpha: Numbers, gamma: int) -> np.ndarray:
    """τ: expected tokens of a block if each drafted token is accepted with probability α given those before it.

    Equation 1:

    (1 − α^(γ+1)) / (1 − α), as the sum 1 + α + … + α^γ, which has no pole at α = 1.

    Raises:
        ValueError: for α outside [0, 1] or γ < 1.
    """
    if gamma < 1 or not np.all((np.asarray(alpha) >= 0) & (np.asarray(alpha) <= 1)):
        raise ValueError(f"needs 0 <= alpha <= 1 and gamma >= 1, got alpha = {alpha}, gamma = {gamma}")
    return np.polynomial.polynomial.polyval(alpha, np.ones(gamma + 1))


def token_acceptance(kept: Numbers, gamma: Numbers, blocks: Numbers = 1.0) -> np.ndarray:
    """Acceptance probability α at which blocks keep `kept` proposals: equation 1, summed and solved by bisection.

    Σ blocks (τ(α, γ) − 1) = Σ kept, with sums over the last axis, which the result lacks. It is 1 if `kept` is larger
    than any α allows, and NaN if a term is not finite.

    Args:
        kept: proposals that were kept, (..., n).
        gamma: tokens of a draft, (..., n).
        blocks: number of blocks, (..., n).
    """
    kept, gamma, blocks = np.broadcast_arrays(*np.atleast_1d(kept, gamma, blocks))
    total = kept.sum(-1)
    low, high = np.zeros(total.shape), np.ones(total.shape)
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        alpha = middle[..., None]
        tokens = alpha * np.expm1(gamma * np.log(alpha)) / (alpha - 1)  # α + … + α^γ, without cancellation near 1
        below = (blocks * tokens).sum(-1) < total
        low, high = np.where(below, middle, low), np.where(below, high, middle)
    # The end that the last step left: exactly 1 or 0 where the solution is at an end of the interval.
    return np.where(np.isfinite(total + (blocks * gamma).sum(-1)), np.where(below, high, low), np.nan)


def speedup(calibration: Calibration, batch: Numbers, length: Numbers, gamma: Numbers, tau: Numbers) -> np.ndarray:
    """Tokens per second with speculation over those without: τ T_T / (γ T_D + T_V) (equation 1)."""
    return tau * target_seconds(calibration, batch, length) / block_seconds(calibration, batch, length, gamma)


def boundary(
    calibration: Calibration, length: Numbers, gamma: int, tau: float, *, margin: float = MARGIN, largest: int = 1024
) -> np.ndarray:
    """Largest batch at which speculation pays, in the shape of `length`; 0 if none up to `largest` does."""
    batches = np.arange(1, largest + 1)
    pays = speedup(calibration, batches, np.asarray(length, float)[..., None], gamma, tau) >= 1 + margin
    return np.max(np.where(pays, batches, 0), axis=-1)
