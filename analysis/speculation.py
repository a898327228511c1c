"""Quantities of self-speculative decoding: what its records hold, and the acceptance that a block's tokens imply."""

import math

import numpy as np
import pandas as pd

MEASURED = (
    "draft_length", "block_efficiency", "acceptance", "speculated_passes", "drafting_seconds",
    "block_verification_seconds", "quantisation_seconds", "quantisation_error",
    *(f"kept_at.{place}" for place in range(1, 12)),
)  # fmt: skip
"""Numbers that the records of runs with self-speculation have and those of others lack (docs/metrics.md)."""

HALVINGS = 50
"""Of the interval [0, 1] in which an acceptance lies: to the precision of a double."""


def with_measurements(steps: pd.DataFrame) -> pd.DataFrame:
    """The records with all of `MEASURED`, NaN where no run has it."""
    return steps.assign(**{name: math.nan for name in MEASURED if name not in steps})


def token_acceptance(steps: pd.DataFrame) -> pd.Series:
    """Acceptance α of a proposed token that gives each step its tokens of a block τ at its draft length γ.

    EfficientRollout (arXiv 2606.18967), equation 1 solved for α: τ = 1 + α + … + α^γ, as in Appendix E.2. NaN
    where nothing speculated.
    """
    tau, gamma = (steps[name].to_numpy(dtype=float) for name in ("block_efficiency", "draft_length"))
    low, high = np.zeros(len(steps)), np.ones(len(steps))
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        with np.errstate(invalid="ignore"):
            below = (1 - middle ** (gamma + 1)) / (1 - middle) < tau
        low, high = np.where(below, middle, low), np.where(below, high, middle)
    known = np.isfinite(tau) & np.isfinite(gamma)
    return pd.Series(np.where(known, (low + high) / 2, math.nan), index=steps.index)


def correlation(one: pd.Series, other: pd.Series) -> float:
    """Pearson's coefficient over the steps that have both; NaN for fewer than three or a constant."""
    both = pd.DataFrame({"one": one, "other": other}).dropna()
    if len(both) < 3 or (both.nunique() == 1).any():
        return math.nan
    return float(np.corrcoef(both["one"], both["other"])[0, 1])
