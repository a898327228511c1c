"""Numbers of tables compared with the published ones: by prediction intervals of blocks, and as a whole.

P-values are corrected over all distinct numbers of a paper (Benjamini and Hochberg 1995). More numbers must then differ
than between arbitrary parts of the same blocks (`redraft.analysis.reference.prediction`), since some numbers have rare
values that are far from all others.
"""

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from scipy import stats

from redraft.analysis.data.collect import SPREAD
from redraft.analysis.data.measured import RECORD, Measured
from redraft.analysis.data.reported_tables import no_reported
from redraft.analysis.data.statistics import LEVEL
from redraft.analysis.data.timing import is_timed
from redraft.analysis.reference import prediction
from redraft.analysis.reference.prediction import RELATIVE
from redraft.analysis.reference.published import Published
from redraft.analysis.tables.comparison import TableCell, TableSource, cells_of
from redraft.analysis.tables.files import read_cells
from redraft.analysis.tables.resolved import Resolved
from redraft.analysis.tables.table_columns import expand
from redraft.config import TableWithoutRuns, id_of
from redraft.config.quantities import of_step
from redraft.config.tables import AVERAGE, Column
from redraft.files import errors_of_reading
from redraft.layout import Layout
from redraft.result_files import (
    DERIVED,
    check_hashes,
    read_derived,
    read_record,
)

AGREES, DIFFERS, NOT_COMPARABLE = "agrees", "differs", "not comparable"
OF_TIMES = (SPREAD, "tail_share")
"""Quantities of a step that depend on times, besides seconds."""
LEAST = {"drift": 1e-4}
"""Least deviation of a quantity of a step that is rounding alone in correct runs: a drift of 1e-14 in float32, and of
6e-6 nats per token in bfloat16."""


@dataclass(frozen=True)
class ComparedNumber:
    """A number of a table with the prediction interval of the published one; NaN is unknown.

    Attributes:
        table: number of the table.
        row: label of the row, with its group.
        column: name of the column.
        cell: `paper/cell`.
        value: mean of these results.
        units: blocks of these results.
        reference: mean of the published results.
        reference_units: their blocks.
        low, high: 95 % prediction interval for a mean of `units` blocks, not corrected; NaN if all published blocks are
            equal.
        p: p-value of the difference; NaN if not comparable.
        p_corrected: the same, corrected over the distinct numbers of the paper.
        outcome: `AGREES`, `DIFFERS` or `NOT_COMPARABLE`.
        reason: what makes it not comparable, or why it differs or agrees although its p-value says otherwise.
        own, published: means of the blocks by block, of ratios logarithms; empty if not comparable.
        least: deviation that the published blocks have at least (`LEAST`).
    """

    table: int
    row: str
    column: str
    cell: str
    value: float
    units: int
    reference: float
    reference_units: int
    low: float = math.nan
    high: float = math.nan
    p: float = math.nan
    p_corrected: float = math.nan
    outcome: str = NOT_COMPARABLE
    reason: str = ""
    own: Mapping[int, float] = field(default_factory=dict, repr=False)
    published: Mapping[int, float] = field(default_factory=dict, repr=False)
    least: float = 0.0


def all_numbers(layout: Layout, published: Published, paper: str) -> tuple[list[ComparedNumber], int]:
    """Comparison of all tables that both results have, and the number of published values that the other lacks."""
    folder, tables = layout.collected(paper), layout.tables(paper)
    record = read_record(folder / RECORD, "sha256", "made_from")
    check_hashes(folder, record["sha256"] | record["made_from"], folder / RECORD)
    check_hashes(tables, read_derived(tables, folder / RECORD), tables / DERIVED)
    sources = [
        TableSource(Measured.load(collected), no_reported(), Resolved.load(collected))
        for collected in (folder, published.layout.collected(paper))
    ]
    numbers: list[ComparedNumber] = []
    absent = 0
    for table in sources[0].resolved.tables:
        own, other = (each.table(paper, table.number).with_suffix(".csv") for each in (layout, published.layout))
        if isinstance(table, TableWithoutRuns) or not other.exists():
            continue
        merged = _merged(own, other)
        absent += int((merged["_merge"] == "right_only").sum())
        both = merged[merged["_merge"] == "both"].to_dict("records")
        cells = [_cells(source, table.number) for source in sources]
        timed = of_times(cell.column for cell in cells[0].values())
        with errors_of_reading(own, ValueError, TypeError):
            found = [_number(table.number, line, [each.get(_key(line)) for each in cells]) for line in both]
        for number in found:
            reason = "times depend on the machine" if number.column in timed else number.reason
            if sources[1].measured.runs.looks:
                reason = "the published intervals are those of a sequential campaign"
            unknown = reason and number.outcome != DIFFERS
            numbers.append(replace(number, reason=reason, p=math.nan) if unknown else number)
    return numbers, absent


def least_deviation(column: Column) -> float:
    """Deviation that a column's published blocks have at least; 0 if what they have counts."""
    return LEAST.get(of_step(column.quantity), 0.0)


def of_times(columns: Iterable[Column]) -> set[str]:
    """Names of a table's columns that depend on times."""
    columns = list(columns)
    timed = {
        column.name
        for column in columns
        if is_timed(column.quantity) or not {of_step(column.quantity), *column.quantity.split(":")}.isdisjoint(OF_TIMES)
    }
    # A mean of speedups depends on times if one of them does.
    return timed | {column.name for column in columns if column.quantity == AVERAGE and timed}


KEY = ["group", "row", "step", "column", "cell"]


def _key(line: Mapping[str, Any]) -> tuple[str, ...]:
    """Key of a line of `_merged` in `_cells`."""
    return tuple(str(line[name]) for name in (*KEY, "nth"))


def _cells(source: TableSource, number: int) -> dict[tuple[str, ...], TableCell]:
    """Cells of a table by the columns `KEY` of its file and the index among cells with equal ones."""
    resolved = source.resolved
    table = next((each for each in resolved.tables if each.number == number), None)
    # These results may have a table that was declared since.
    if table is None or isinstance(table, TableWithoutRuns):
        return {}
    found: dict[tuple[str, ...], TableCell] = {}
    seen: Counter[tuple[str, ...]] = Counter()
    for cell in cells_of(expand(table, resolved.benchmarks, resolved.reported, resolved.preset), source):
        line = cell.line
        step, name = "" if line.at is None else str(line.at), line.row.cell and id_of(resolved.paper, line.row.cell)
        key = (line.group, line.label, step, cell.column.name, name)
        found[*key, str(seen[key])] = cell
        seen[key] += 1
    return found


def _merged(own: Path, other: Path) -> pd.DataFrame:
    """Cells of both tables that have runs; `_merge` says which have them. A table without runs has none."""
    needed, frames = {*KEY, "reproduced", "low", "high", "seeds"}, []
    for file in (own, other):
        if not file.exists():
            frames.append(pd.DataFrame(columns=sorted(needed)))
            continue
        with errors_of_reading(file, ValueError, TypeError):
            frame = read_cells(file)
        if not needed <= set(frame):
            return pd.DataFrame(columns=["_merge"])
        frames.append(frame[frame["seeds"] != ""].fillna(dict.fromkeys(KEY, "")))
    # Labels may repeat in a table; the n-th of one is compared with the n-th of the other.
    keyed = [frame.assign(nth=frame.groupby(KEY).cumcount()).astype(dict.fromkeys(KEY, str)) for frame in frames]
    return keyed[0].merge(
        keyed[1], on=[*KEY, "nth"], suffixes=("", "_published"), validate="1:1", how="outer", indicator=True
    )


def _number(table: int, line: Mapping[str, Any], cells: Sequence[TableCell | None]) -> ComparedNumber:
    """A line of both files, compared by the blocks of its cell in these results and in the published ones."""
    number = ComparedNumber(
        table,
        f"{line['group']}, {line['row']}" if line["group"] else str(line["row"]),
        line["column"],
        line["cell"],
        float(line["reproduced"]),
        0,
        float(line["reproduced_published"]),
        0,
    )
    own, published = cells
    if own is not None and not own.column.relative:
        number = replace(number, least=least_deviation(own.column))
    if own is None or not _same(number.value, own.estimate.mean):
        given = "no such number" if own is None else f"{own.estimate.mean:.6g}"
        return replace(number, outcome=DIFFERS, reason=f"the collected runs give {given}")
    if published is None or not _same(number.reference, published.estimate.mean):
        return replace(number, reason="this version makes another number of the published runs")
    return predicted(number, _by_block(own), _by_block(published), own.is_ratio)


def _same(first: float, second: float) -> bool:
    return math.isclose(first, second, rel_tol=RELATIVE, abs_tol=RELATIVE) or (math.isnan(first) and math.isnan(second))


def _by_block(cell: TableCell) -> dict[int, list[float]]:
    """Values of the seeds of each block."""
    found: dict[int, list[float]] = {}
    for seed, value in zip(cell.estimate.seeds, cell.estimate.values, strict=True):
        found.setdefault(cell.blocks.get(seed, seed), []).append(value)
    return found


def predicted(
    number: ComparedNumber,
    own: Mapping[int, Sequence[float]],
    published: Mapping[int, Sequence[float]],
    is_ratio: bool,
) -> ComparedNumber:
    """The number with its blocks, its prediction interval and its p-value.

    Args:
        number: with both means.
        own, published: values of the seeds of each block.
        is_ratio: whether they are ratios.
    """
    number = replace(number, units=len(own), reference_units=len(published))
    value, mean = number.value, number.reference
    if not (math.isfinite(value) and math.isfinite(mean)):
        same = value == mean or (math.isnan(value) and math.isnan(mean))
        return number if same else replace(number, reason="one of the numbers is not finite")
    if len(published) < 2:
        return replace(number, reason="a single published block")
    all_values = np.array([value for part in published.values() for value in part])
    # With a value of zero the published estimate has no logarithms, and equal values need none.
    logs = is_ratio and all_values.min() > 0 and not prediction.is_constant(all_values)
    if logs and min(min(part) for part in own.values()) <= 0:
        return replace(number, reason="a ratio of zero has no logarithm")
    means = [
        {block: float(np.mean(np.log(part) if logs else part)) for block, part in side.items()}
        for side in (own, published)
    ]
    mine, theirs = (np.array([[*side.values()]]) for side in means)
    (p,) = prediction.p_values(mine, theirs, number.least)
    if math.isnan(p):
        return replace(number, reason="values are too large to be compared")
    number = replace(number, p=float(p), own=means[0], published=means[1])
    if not number.least and prediction.is_constant(theirs):
        return number
    (error,) = prediction.standard_errors(mine, theirs, number.least)
    middle, half = theirs.mean(), error * float(stats.t.ppf(1 - LEVEL / 2, len(published) - 1))
    with np.errstate(over="ignore"):
        low, high = (float(np.exp(end) if logs else end) for end in (middle - half, middle + half))
    return replace(number, low=low, high=high)


def judged(numbers: Iterable[ComparedNumber]) -> tuple[list[ComparedNumber], float]:
    """The numbers with corrected p-values and outcomes, and the share of divisions of all blocks that differ as much;
    NaN if no number differs.

    Numbers whose p-values say that they differ agree nevertheless if that share is above 5 %, or above that of one
    division. A number that several tables have counts once.
    """
    numbers = list(numbers)
    distinct = {_blocks(n): n for n in numbers if not math.isnan(n.p)}
    q = dict(zip(distinct, prediction.corrected(np.array([n.p for n in distinct.values()])), strict=True))
    share, is_usual = math.nan, False
    if any(each <= LEVEL for each in q.values()):
        own, published = (_array([getattr(n, side) for n in distinct.values()]) for side in ("own", "published"))
        least = np.array([n.least for n in distinct.values()])
        share, divisions = prediction.share_of_divisions(own, published, least)
        is_usual = share > max(LEVEL, 1 / divisions)
    found = []
    for n in numbers:
        if math.isnan(n.p):
            found.append(n)
            continue
        is_outside = q[_blocks(n)] <= LEVEL
        reason = USUAL if is_outside and is_usual else n.reason
        outcome = DIFFERS if is_outside and not is_usual else AGREES
        found.append(replace(n, p_corrected=float(q[_blocks(n)]), outcome=outcome, reason=reason))
    return found, share


USUAL = "as many numbers differ between other parts of the same blocks"
"""Reason why a number agrees that lies outside its interval."""


def _blocks(number: ComparedNumber) -> tuple[tuple[int, str], ...]:
    """All blocks' means; ten digits, since tables may compute the same number in another order."""
    return tuple((block, f"{value:.10g}") for side in (number.own, number.published) for block, value in side.items())


def _array(numbers: Sequence[Mapping[int, float]]) -> np.ndarray:
    """Means of shape (numbers, blocks); NaN where a number lacks a block."""
    blocks = sorted({block for number in numbers for block in number})
    return np.array([[number.get(block, math.nan) for block in blocks] for number in numbers])
