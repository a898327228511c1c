"""Quantities of self-speculative decoding: what its records hold, and the acceptance that a block's tokens imply."""

import math
from collections.abc import Callable

import numpy as np
import pandas as pd

from redraft.config.quantities import fields
from redraft.selfspec import roofline


def with_measurements(steps: pd.DataFrame) -> pd.DataFrame:
    """The records with all fields that a declaration may name, NaN where no run has them.

    So is the draft length γ of a step in which no pass speculated: the record has the setting, which nothing used.
    """
    found = steps.reindex(columns=[*steps.columns, *sorted(fields() - set(steps))])
    return found.assign(draft_length=found["draft_length"].where(found["speculated_passes"] > 0))


def token_acceptance(steps: pd.DataFrame) -> pd.Series:
    """Acceptance α of a proposed token that gives each step its tokens of a block τ at its draft length γ.

    EfficientRollout (arXiv 2606.18967), equation 1 solved for α: τ = 1 + α + … + α^γ, as in Appendix E.2. NaN
    where nothing speculated, and where blocks had fewer proposals than γ, for which the equation does not hold.
    """
    fewer = steps["proposed"] < steps["blocks"] * steps["draft_length"]
    return _solved(steps["block_efficiency"].mask(fewer), steps["draft_length"])


def token_acceptance_from(start: int) -> Callable[[pd.DataFrame], pd.Series]:
    """The same of the blocks of each step that begin in the part of the response from this position on."""

    def solved(steps: pd.DataFrame) -> pd.Series:
        # Kept over proposed is (τ - 1) / γ if each block has γ proposals.
        fewer = steps["proposed"] < steps["blocks"] * steps["draft_length"]
        kept, proposed = steps[f"kept_from.{start}"], steps[f"proposed_from.{start}"].mask(fewer)
        return _solved(1 + steps["draft_length"] * kept / proposed, steps["draft_length"])

    return solved


def _solved(taus: pd.Series, gammas: pd.Series) -> pd.Series:
    """α of each step; NaN without blocks."""
    kept, gamma = taus.to_numpy(dtype=float) - 1, gammas.to_numpy(dtype=float)
    return pd.Series(roofline.token_acceptance(kept[:, None], gamma[:, None]), index=taus.index)


def plain_positions(steps: pd.DataFrame) -> pd.Series:
    """Share of the longest response's positions that were decoded before speculation was switched on.

    That response takes part in every pass: a plain one adds a token to it, a speculated one τ on average.
    EfficientRollout (section 5.3) counts decoding steps so. 1 where nothing speculated; NaN where that is not measured.
    """
    speculated = steps["speculated_passes"]
    # Without speculation τ is null, and 0 times null is null.
    tokens = speculated * steps["block_efficiency"].where(speculated > 0, 0)
    return (1 - speculated) / (1 - speculated + tokens)


def correlation(one: pd.Series, other: pd.Series) -> float:
    """Pearson's coefficient over the steps that have both; NaN for fewer than three or a constant."""
    both = pd.DataFrame({"one": one, "other": other}).dropna()
    # Two points always have a coefficient of 1 or -1.
    if len(both) < 3 or (both.nunique() == 1).any():
        return math.nan
    return float(np.corrcoef(both["one"], both["other"])[0, 1])
