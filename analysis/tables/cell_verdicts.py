"""Verdicts on single numbers, and the sentences below a table of budgets."""

import math

import pandas as pd

from redraft.analysis.data.statistics import LEVEL, NEUTRAL, ROUNDING, Estimate, Interval
from redraft.analysis.data.timing import TimingSpread, is_timed
from redraft.config import BudgetTable
from redraft.config.tables import Budget

MISSING, BASELINE, NOT_COMPARABLE, NOT_APPLICABLE = "missing", "baseline", "not comparable", "not applicable"
INCONCLUSIVE, AGREES, DIFFERS = "inconclusive", "agrees", "differs"
NO_DATA = "no data"
UNEVEN = "not decided"
"""Verdict on seconds that cannot be compared: equal work took unequal time, or no two runs did equal work."""

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
"""Marks of verdicts, so that no verdict depends on its colour alone."""


def verdict(
    found: Estimate, reported: float, relative: str | None, is_baseline: bool = False, p_corrected: float = math.nan
) -> str:
    """Verdict on a reproduced value beside the reported one, by its Student interval.

    Returns:
        `missing` without runs, `baseline` for a cell compared with itself, `not comparable` without a reported value.
        For relative quantities `inconclusive` if the corrected p-value is not significant, without one if the interval
        holds the neutral value, or if there is no interval; else `differs` if the paper reports no effect, `opposite
        direction` if its value is on the other side of the neutral one, `agrees` if the interval holds it, else `same
        direction`. For absolute ones `agrees`, `differs` or `inconclusive`.
    """
    if math.isnan(found.mean):
        return MISSING
    if is_baseline:
        return BASELINE
    if math.isnan(reported):
        return NOT_COMPARABLE
    # Before the interval, which an infinite mean has not: never reached may still agree with the paper's never.
    if math.isinf(found.mean):
        return _never(found, reported)
    neutral = NEUTRAL[relative] if relative else math.nan
    # Not the interval where there is a p-value: in a sequential campaign an earlier look may have decided. NaN is in no
    # interval, so that absolute values are judged by the reported one alone.
    open_effect = neutral in found.interval if math.isnan(p_corrected) else p_corrected > LEVEL
    if math.isnan(found.interval.low) or open_effect:
        return INCONCLUSIVE
    if relative is None:
        return AGREES if reported in found.interval else DIFFERS
    if reported == neutral:
        return DIFFERS
    # Before the interval, which holds the other side too if an earlier look decided.
    if (found.mean - neutral) * (reported - neutral) < 0:
        return "opposite direction"
    return AGREES if reported in found.interval else "same direction"


def _never(found: Estimate, reported: float) -> str:
    """The verdict on a target that a run did not reach, which is infinite: certain only if no run did."""
    if not all(map(math.isinf, found.values)):
        return INCONCLUSIVE
    return AGREES if math.isinf(reported) else DIFFERS


def budget_verdicts(table: BudgetTable, cells: pd.DataFrame, uneven: TimingSpread | None = None) -> list[str]:
    """A sentence or two a budget, in the order of the table; none for a budget that is not known.

    Budgets of seconds are not decided if their times cannot be compared, for which `uneven` has the reason.
    """
    return [text for budget in table.budgets if (text := _budget_verdict(budget, table, cells, uneven))]


def _budget_verdict(budget: Budget, table: BudgetTable, cells: pd.DataFrame, uneven: TimingSpread | None) -> str:
    if uneven and is_timed(budget.quantity):
        return f"At equal {budget.title} nothing is decided: {uneven.text}."
    accuracy = cells[cells["column"] == f"{budget.name}_accuracy"].set_index("row")["reproduced"].dropna()
    if accuracy.empty:
        return ""
    # At an end of the scale no row could be better.
    if accuracy.max() <= 0 or accuracy.min() >= 100:
        return f"At equal {budget.title} nothing is decided: all rows are at {accuracy.iloc[0]:.0f} %."
    baseline = next(row.label for row in table.rows if row.cell == table.baseline)
    best = accuracy.max()
    highest = [str(label) for label, value in accuracy.items() if best - value <= ROUNDING * best]
    are = "is" if len(highest) == 1 else "are"
    text = f"At equal {budget.title}, {' and '.join(highest)} {are} highest with {best:.1f} %"
    return f"{text}{_against(baseline, budget, cells)} This is for {budget.whom}."


def _against(baseline: str, budget: Budget, cells: pd.DataFrame) -> str:
    """What is above the baseline, below it, or indistinguishable from it, by the 95 % interval of the paired
    difference."""
    differences = cells[cells["column"] == f"{budget.name}_difference"].set_index("row")
    parts: dict[str, list[str]] = {"above": [], "below": [], "indistinguishable from": []}
    # With one seed there is no interval, which must not be read as “indistinguishable”.
    for label, cell in differences.drop(index=baseline).dropna(subset=["low", "high"]).iterrows():
        above = "above" if cell["low"] > 0 else "below"
        where = "indistinguishable from" if 0 in Interval(cell["low"], cell["high"]) else above
        parts[where].append(str(label))
    found = [f"{where} {baseline}: {', '.join(labels)}" for where, labels in parts.items() if labels]
    return f". By the 95 % interval of the difference, {'; '.join(found)}." if found else "."
