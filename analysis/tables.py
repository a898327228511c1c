"""A regenerated table: every cell with its reproduced and reported value, interval, seeds and verdict."""

import math
from dataclasses import dataclass

import pandas as pd

from analysis.collect import Runs
from analysis.quantities import by_seed
from analysis.reported import reported_row
from analysis.statistics import NEUTRAL, PAIRINGS, Estimate, estimate, paired
from redraft.config import Benchmark, Cell, Column, Experiments, Row, Table

COLUMNS = [
    *("row", "column", "reproduced", "low", "high", "n_seeds", "reported", "deviation", "verdict"),
    *("tested_low", "tested_high", "cell", "seeds", "manifests"),
]
"""`low` and `high` are the bootstrap interval that is shown, `tested_low` and `tested_high` that of the verdict."""

EACH = "accuracy:*"
"""Quantity of a column that stands for one column a benchmark."""


@dataclass(frozen=True, eq=False)
class Source:
    """What a table is made from."""

    runs: Runs
    reported: pd.DataFrame
    experiments: Experiments
    paper: str
    paper_scale: bool


def make_table(table: Table, source: Source) -> pd.DataFrame:
    """All cells of a table, a line each, columns as in `COLUMNS`."""
    lines = [_cell(table, row, column, source) for row in table.rows for column in table.columns]
    return pd.DataFrame(lines, columns=COLUMNS)


def expand(table: Table, benchmarks: dict[str, Benchmark]) -> Table:
    """The table with one absolute accuracy column a benchmark of the preset in place of `accuracy:*`."""
    columns = []
    for column in table.columns:
        if column.quantity != EACH:
            columns.append(column)
            continue
        for name in benchmarks:
            changes = {"name": name, "title": f"{name} (%)", "quantity": f"accuracy:{name}", "reported": [name]}
            columns.append(column.model_copy(update=changes))
    return table.model_copy(update={"columns": columns})


def _cell(table: Table, row: Row, column: Column, source: Source) -> dict:
    values = by_seed(source.runs, column.quantity, row.cell)
    if column.relative:
        values = paired(values, by_seed(source.runs, column.quantity, table.baseline), column.relative)
    values = {seed: value * column.scale for seed, value in values.items()}
    found = estimate(values)
    reported = _reported(table, row, column, source)
    is_baseline = bool(column.relative) and row.cell == table.baseline
    cells = [row.cell] if is_baseline or not column.relative else [row.cell, table.baseline]
    return {
        "row": row.label,
        "column": column.name,
        "reproduced": found.mean,
        "low": found.shown.low,
        "high": found.shown.high,
        "n_seeds": len(found.seeds),
        "reported": reported,
        "deviation": found.mean - reported,
        "verdict": verdict(found, reported, column.relative, is_baseline),
        "tested_low": found.tested.low,
        "tested_high": found.tested.high,
        "cell": f"{source.paper}/{row.cell}",
        "seeds": " ".join(map(str, found.seeds)),
        "manifests": " ".join(path for cell in cells for path in source.runs.manifests(cell, found.seeds)),
    }


def _reported(table: Table, row: Row, column: Column, source: Source) -> float:
    """The paper's value of a cell, NaN where there is none that may be compared.

    Relative values compare at any scale; absolute ones only with the paper's own models and benchmarks.
    """
    if not column.reported or not (column.relative or source.paper_scale):
        return math.nan
    value = _mean(reported_row(source.reported, _lookup(source, row.cell), row.reported), column)
    if column.relative is None or column.printed_relative:
        return value
    baseline_row = next(r for r in table.rows if r.cell == table.baseline)
    baseline = _mean(reported_row(source.reported, _lookup(source, table.baseline), baseline_row.reported), column)
    return PAIRINGS[column.relative](value, baseline)


def _lookup(source: Source, cell: str) -> Cell:
    return source.experiments.cell(f"{source.paper}/{cell}")


def _mean(row: dict[str, float], column: Column) -> float:
    values = [row[name] for name in column.reported if name in row]
    return sum(values) / len(values) if len(values) == len(column.reported) else math.nan


def verdict(found: Estimate, reported: float, relative: str | None, is_baseline: bool = False) -> str:
    """How a reproduced value stands to the reported one, by the tested interval.

    Returns:
        `missing` without runs, `baseline` for a cell compared with itself, `not comparable` without a reported value.
        For relative quantities `inconclusive` if the interval holds the neutral value or there is none, else `agrees`
        if it holds the reported value, else `same direction` or `opposite direction` by the side of the neutral value,
        `differs` if the paper reports no effect. For absolute ones `agrees`, `differs` or `inconclusive`.
    """
    if math.isnan(found.mean):
        return "missing"
    if is_baseline:
        return "baseline"
    if math.isnan(reported):
        return "not comparable"
    neutral = NEUTRAL[relative] if relative else math.nan
    if math.isnan(found.tested.low) or neutral in found.tested:
        return "inconclusive"
    if reported in found.tested:
        return "agrees"
    if relative is None or reported == neutral:
        return "differs"
    return "same direction" if (found.mean - neutral) * (reported - neutral) > 0 else "opposite direction"
