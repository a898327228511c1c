"""Columns of a table at one preset: each kind of table makes its declaration into columns that are measured alike."""

from collections.abc import Iterable

from redraft.config import BudgetTable, Column, Reported, RunTable, StageTable, TargetTable
from redraft.config.quantities import ACCURACY, AT_EQUAL, EACH, SECONDS, SPEEDUP
from redraft.config.tables import AVERAGE, Budget, Clock, RunTarget, Target

UNITS: dict[Clock, str] = {"hours": "h", "steps": "steps"}
"""Unit of the columns of a table of targets."""


def expand(table: RunTable, benchmarks: Iterable[str], spec: Reported | None = None, preset: str = "") -> RunTable:
    """The table with all its columns.

    Each benchmark of the preset has an absolute column in place of `accuracy:*`. `spec` says which reported columns are
    a stage's; the preset of this name may have targets of its own.
    """
    columns = [each for column in table.columns for each in _of_benchmarks(column, benchmarks)]
    if isinstance(table, StageTable):
        reported = {name: quantity.columns for name, quantity in spec.quantities.items()} if spec else {}
        columns += [
            Column(
                name=f"{stage}_s",
                title=f"{title} (s)",
                quantity=SECONDS + stage,
                decimals=table.decimals,
                reported=reported.get(SECONDS + stage, []),
            )
            for stage, title in table.stages.items()
        ]
        total = reported.get(SECONDS + "total", [])
        columns += [
            Column(name=f"speedup_{kind}", title=title, quantity=SPEEDUP + kind, reported=total)
            for kind, title in table.speedups.items()
        ]
    if isinstance(table, TargetTable):
        columns += [each for target in table.at.get(preset, table.targets) for each in _of_target(target, table)]
        columns += [average(table.decimals)] if table.average else []
    if isinstance(table, BudgetTable):
        columns += [each for budget in table.budgets for each in _of_budget(budget, table)]
    return table.model_copy(update={"columns": columns})


def _of_benchmarks(column: Column, benchmarks: Iterable[str]) -> list[Column]:
    if column.quantity != EACH:
        return [column]
    return [
        column.model_copy(
            update={"name": name, "title": f"{name} (%)", "quantity": ACCURACY + name, "reported": [name]}
        )
        for name in benchmarks
    ]


def _of_target(target: RunTarget, table: TargetTable) -> list[Column]:
    """The columns of a target; a group of rows may have another value to reach."""
    first = {
        group: f"{table.clock}_to:{target.sign}{target.value(group):g}:{target.quantity}"
        for group in ("", *target.in_groups)
    }
    quantity = first.pop("")
    columns = pair(target, quantity, table.decimals, UNITS[table.clock])
    return [column.model_copy(update={"in_groups": first}) for column in columns]


def _of_budget(budget: Budget, table: BudgetTable) -> list[Column]:
    """The columns of a budget: what is spent of it, the accuracy at the equal budget, and the difference."""
    # Each cell once: the baseline is a row too.
    bought = AT_EQUAL + ":".join([budget.quantity, "+".join(dict.fromkeys(table.cells)), table.accuracy])
    unit = f" ({budget.unit})" if budget.unit else ""
    spent = Column(
        name=f"{budget.name}_spent",
        title=f"Spent {budget.title}{unit}",
        quantity=f"sum:{budget.quantity}",
        scale=budget.scale,
        decimals=budget.decimals,
    )
    accuracy = Column(
        name=f"{budget.name}_accuracy", title=f"Accuracy at equal {budget.title} (%)", quantity=bought, decimals=1
    )
    difference = f"Δ at equal {budget.title} (points)"
    changes = {"name": f"{budget.name}_difference", "title": difference, "relative": "difference"}
    return [spent, accuracy, accuracy.model_copy(update=changes)]


def pair(target: Target, quantity: str, decimals: int, unit: str) -> list[Column]:
    """The column of the time to a target and, in brackets after it, that of the speedup over the baseline."""
    speedup = Column.model_construct(  # published curves have keys of their files instead of quantities
        name=f"{target.name}_speedup",
        title=f"{target.title}, speedup (×)",
        quantity=quantity,
        decimals=decimals,
        reported=target.reported,
        relative="speedup",
        in_brackets=True,
    )
    changes = {"name": target.name, "title": f"{target.title} ({unit})", "relative": None, "in_brackets": False}
    own = decimals if target.decimals is None else target.decimals
    return [speedup.model_copy(update=changes | {"decimals": own}), speedup]


def average(decimals: int) -> Column:
    """The column of a row's mean speedup."""
    # Not validated, since no run has this quantity.
    return Column.model_construct(
        name=AVERAGE, title="Average speedup (×)", quantity=AVERAGE, relative="speedup", decimals=decimals
    )
