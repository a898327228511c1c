"""Verdicts on single numbers: how a reproduced value stands to a reported one."""

import math

from redraft.analysis.data.statistics import NEUTRAL, Estimate

MISSING, BASELINE, NOT_COMPARABLE, NOT_APPLICABLE = "missing", "baseline", "not comparable", "not applicable"
INCONCLUSIVE, AGREES, DIFFERS = "inconclusive", "agrees", "differs"
NO_DATA = "no data"
UNEVEN = "not decided"
"""Verdict on seconds where equal work took unequal time."""

MARKS = {
    AGREES: "=",
    "same direction": "↗",
    DIFFERS: "≠",
    "opposite direction": "↘",
    INCONCLUSIVE: "?",
    UNEVEN: "—",
    "reproduced": "✓",
    "contradicted": "✗",
    "supported": "✓",
    "not supported": "✗",
}
"""Marks of verdicts, so that none is told by its colour alone."""

SIGNIFICANT = 0.05
"""Corrected p-value above which no effect is asserted."""


def verdict(
    found: Estimate, reported: float, relative: str | None, is_baseline: bool = False, p_corrected: float = math.nan
) -> str:
    """Verdict on a reproduced value beside the reported one, by its Student interval.

    Returns:
        `missing` without runs, `baseline` for a cell compared with itself, `not comparable` without a reported value.
        For relative quantities `inconclusive` if the interval holds the neutral value or there is none, or if the
        corrected p-value is not significant; else `agrees` if the interval holds the reported value, else
        `same direction` or `opposite direction` by the side of the neutral value, `differs` if the paper reports no
        effect. For absolute ones `agrees`, `differs` or `inconclusive`.
    """
    if math.isnan(found.mean):
        return MISSING
    if is_baseline:
        return BASELINE
    if math.isnan(reported):
        return NOT_COMPARABLE
    if math.isinf(found.mean):
        return _never(found, reported)
    neutral = NEUTRAL[relative] if relative else math.nan
    if math.isnan(found.interval.low) or neutral in found.interval or p_corrected > SIGNIFICANT:
        return INCONCLUSIVE
    if reported in found.interval:
        return AGREES
    if relative is None or reported == neutral:
        return DIFFERS
    return "same direction" if (found.mean - neutral) * (reported - neutral) > 0 else "opposite direction"


def _never(found: Estimate, reported: float) -> str:
    """The verdict on a target that a run did not reach, which is infinite: certain only if no run did."""
    if not all(map(math.isinf, found.values)):
        return INCONCLUSIVE
    return AGREES if math.isinf(reported) else DIFFERS
