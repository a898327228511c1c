"""Replay of published data: tables and points from the raw files that authors published beside their papers.

The files are third-party data, so they are never part of the repository (`redraft.published`); without them a table
says "no data" in every cell.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import pandas as pd

from redraft.analysis.data.reported import ReportedTable, mean_of
from redraft.analysis.data.statistics import PAIRINGS
from redraft.analysis.tables.columns import AVERAGE, average, pair
from redraft.analysis.tables.comparison import COLUMNS
from redraft.analysis.tables.verdicts import BASELINE, NO_DATA
from redraft.analysis.tables.without_runs import Record, as_printed, record
from redraft.config import Column, PublishedTable
from redraft.config.tables import Curve
from redraft.published import curve_file, read_curve

ROUNDING = 1e-9
"""Tolerance of a target for the mean of several fields, which are floating-point numbers."""


@dataclass(frozen=True)
class _Line:
    """A row with the times at which its curve reaches the targets, infinite if never; None without its file."""

    row: Curve
    group: str
    times: list[float] | None


def make_published(table: PublishedTable, reported: ReportedTable) -> pd.DataFrame:
    """All cells of a table of published curves, a line each, columns as those of every table.

    A replayed value agrees if it is the reported one as far as that is printed (`decimals`), and differs otherwise.
    """
    lines, group = [], ""
    for row in table.rows:
        group = row.group or group
        lines.append(_Line(row, group, _times(row, group, table)))
    by_label = {(line.group, line.row.label): line for line in lines}
    records = []
    for line in lines:
        baseline = by_label.get((line.group, line.row.baseline or "")) or next(
            (other for other in lines if other.row.label == line.row.baseline), None
        )
        records += _records(line, baseline, table, reported)
    return pd.DataFrame(records, columns=COLUMNS)


def columns_of(table: PublishedTable) -> list[Column]:
    """A time and a speedup in brackets for each target, and the mean speedup."""
    columns = [
        column for target in table.targets for column in pair(target, target.fields[0], table.decimals, table.unit)
    ]
    return columns + ([average(table.decimals)] if table.average else [])


def _times(row: Curve, group: str, table: PublishedTable) -> list[float] | None:
    file = curve_file(table.folder, row.file)
    if file is None:
        return None
    curves = [read_curve(file, table.time, target.fields) for target in table.targets]
    reached = [
        [time for time, value in curve if value >= target.value(group) - ROUNDING]
        for curve, target in zip(curves, table.targets, strict=True)
    ]
    return [min(times, default=math.inf) * table.scale for times in reached]


def _records(line: _Line, baseline: _Line | None, table: PublishedTable, reported: ReportedTable) -> list[Record]:
    """The cells of a row, in the order of `columns_of`."""
    records: list[Record] = []
    speedups, printed = [], []
    own = reported.select(line.row.reported) if line.row.reported else {}
    other = reported.select(baseline.row.reported) if baseline and baseline.row.reported else {}
    for i, target in enumerate(table.targets):
        time, claimed = line.times[i] if line.times else math.nan, mean_of(own, target.reported)
        before = baseline.times[i] if baseline and baseline.times else math.nan
        speedup, claimed_speedup = _ratio(before, time), _ratio(mean_of(other, target.reported), claimed)
        records.append(_record(line, target.name, time, claimed, table.decimals))
        records.append(_record(line, f"{target.name}_speedup", speedup, claimed_speedup, table.decimals, baseline))
        speedups.append(speedup)
        printed.append(claimed_speedup)
    if table.average:
        records.append(_record(line, AVERAGE, _mean(speedups), _mean(printed), table.decimals, baseline))
    return records


def _ratio(before: float, after: float) -> float:
    """The speedup, NaN where either was never reached."""
    return PAIRINGS["speedup"](after, before) if math.isfinite(before) and math.isfinite(after) else math.nan


def _mean(values: Sequence[float]) -> float:
    finite = [value for value in values if math.isfinite(value)]
    return sum(finite) / len(finite) if finite else math.nan


def _record(
    line: _Line, column: str, value: float, reported: float, decimals: int, baseline: _Line | str | None = ""
) -> Record:
    """A cell; a `baseline` of None says that the row is one itself."""
    verdict = BASELINE if baseline is None else as_printed(value, reported, decimals)
    return record(line.group, line.row.label, column, value, reported, NO_DATA if line.times is None else verdict)
