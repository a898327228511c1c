"""A regenerated table: every cell with its reproduced and reported value, interval, seeds and verdict."""

import math

import pandas as pd

from analysis.columns import AVERAGE
from analysis.lines import Line, Source, lines_of
from analysis.measure import Measured, average, measure, relation
from analysis.statistics import NEUTRAL, Estimate, corrected, estimate
from analysis.verdicts import NOT_APPLICABLE, verdict
from redraft.config import Column, Row, RunTable

COLUMNS = [
    *("group", "row", "step", "column", "reproduced", "low", "high", "n_seeds", "reported", "deviation", "verdict"),
    *("tested_low", "tested_high", "p", "p_corrected", "iqm", "noise", "cell", "seeds", "manifests"),
]
"""`low` and `high` are the bootstrap interval that is shown, `tested_low` and `tested_high` that of the verdict.

`step` is the steps that the row's policy has done, empty for the last one. `p` is that of "no effect", `p_corrected`
the same over all relative cells of the table. `noise` is the standard error that sampling alone causes.
"""


def make_table(table: RunTable, source: Source) -> pd.DataFrame:
    """All cells of a table, a line each, columns as in `COLUMNS`."""
    lines = lines_of(table, source)
    cells = [cell for line in lines for cell in _cells_of(line, table, source)]
    if table.mean_row:
        cells += [_mean_of([cell for cell in cells if cell.column == column]) for column in table.columns]
    found = [estimate(cell.values) for cell in cells]
    tests = [
        f.p_value(_neutral(cell.column)) if cell.compared else math.nan for cell, f in zip(cells, found, strict=True)
    ]
    judged = zip(cells, found, tests, corrected(tests), strict=True)
    return pd.DataFrame([_record(*one, source) for one in judged], columns=COLUMNS)


def _cells_of(line: Line, table: RunTable, source: Source) -> list[Measured]:
    """The cells of a line in the order of the columns."""
    cells: list[Measured] = []
    for column in table.columns:
        is_average = column.quantity == AVERAGE
        cells.append(average(line, column, cells) if is_average else measure(line, column, table, source))
    return cells


def _mean_of(cells: list[Measured]) -> Measured:
    """The mean of a column over the lines that are not compared with themselves, where all of them were run."""
    column, grouped = cells[0].column, any(cell.line.group for cell in cells)
    rows = [cell for cell in cells if not cell.line.is_baseline and cell.line.at != 0]
    parts = [cell for cell in rows if cell.applicable] or rows
    seeds = set.intersection(*(set(cell.values) for cell in parts)) if parts else set()
    reported = [cell.reported for cell in parts if not math.isnan(cell.reported)]
    row = Row.model_construct(label="Mean", cell="", at="end", reported={}, group="", baseline=None)
    return Measured(
        line=Line(row, "All" if grouped else "", "Mean", baseline="(each row's)"),
        column=column,
        values={seed: sum(cell.values[seed] for cell in parts) / len(parts) for seed in seeds},
        reported=sum(reported) / len(reported) if reported else math.nan,
        cells=tuple(dict.fromkeys(name for cell in parts for name in cell.cells)),
        noise=math.sqrt(sum(cell.noise**2 for cell in parts)) / len(parts) if parts else math.nan,
        applicable=any(cell.applicable for cell in rows),
    )


def _record(cell: Measured, found: Estimate, p: float, p_corrected: float, source: Source) -> dict:
    """A cell as a line of the CSV file."""
    line, relative = cell.line, relation(cell.column)
    is_baseline = bool(relative) and line.is_baseline
    result = verdict(found, cell.reported, relative, is_baseline, p_corrected) if cell.applicable else NOT_APPLICABLE
    return {
        "group": line.group,
        "row": line.label,
        "step": "" if line.at is None else str(line.at),
        "column": cell.column.name,
        "reproduced": found.mean,
        "low": found.shown.low,
        "high": found.shown.high,
        "n_seeds": len(found.seeds),
        "reported": cell.reported,
        "deviation": found.mean - cell.reported,
        "verdict": result,
        "tested_low": found.tested.low,
        "tested_high": found.tested.high,
        "p": p,
        "p_corrected": p_corrected,
        "iqm": found.iqm,
        "noise": cell.noise,
        "cell": f"{source.paper}/{line.row.cell}" if line.row.cell else "",
        "seeds": " ".join(map(str, found.seeds)),
        "manifests": " ".join(path for name in cell.cells for path in source.runs.manifests(name, found.seeds)),
    }


def _neutral(column: Column) -> float:
    relative = relation(column)
    return NEUTRAL[relative] if relative else math.nan
