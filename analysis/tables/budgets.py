"""The plain verdict below a table of budgets: the best method for whom, and what is told apart from the baseline."""

import pandas as pd

from redraft.analysis.data.timing import is_timed
from redraft.config import BudgetTable
from redraft.config.tables import Budget


def verdicts(table: BudgetTable, cells: pd.DataFrame, uneven: bool = False) -> list[str]:
    """A sentence or two a budget, in the order of the table; none for a budget that is not known.

    Nothing is said of seconds if they are `uneven`: equal work took unequal time.
    """
    return [text for budget in table.budgets if (text := _verdict(budget, table, cells, uneven))]


def _verdict(budget: Budget, table: BudgetTable, cells: pd.DataFrame, uneven: bool) -> str:
    if uneven and is_timed(budget.quantity):
        return f"At equal {budget.title} nothing is decided: equal work took unequal time on this machine."
    accuracy = cells[cells["column"] == f"{budget.name}_accuracy"].set_index("row")["reproduced"].dropna()
    if accuracy.empty:
        return ""
    baseline = next(row.label for row in table.rows if row.cell == table.baseline)
    best = str(accuracy.idxmax())
    text = f"At equal {budget.title}, {best} is highest with {accuracy[best]:.1f} %"
    return f"{text}{_against(baseline, budget, cells)} This is for {budget.whom}."


def _against(baseline: str, budget: Budget, cells: pd.DataFrame) -> str:
    """What is above the baseline, below it, or not told apart, by the 95 % interval of the paired difference."""
    differences = cells[cells["column"] == f"{budget.name}_difference"].set_index("row")
    parts: dict[str, list[str]] = {"above": [], "below": [], "not told apart from": []}
    for label, cell in differences.drop(index=baseline).dropna(subset=["low", "high"]).iterrows():
        where = "above" if cell["low"] > 0 else "below" if cell["high"] < 0 else "not told apart from"
        parts[where].append(str(label))
    found = [f"{where} {baseline}: {', '.join(labels)}" for where, labels in parts.items() if labels]
    return f". By the 95 % interval of the difference, {'; '.join(found)}." if found else "."
