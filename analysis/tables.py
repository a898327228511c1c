"""A regenerated table: every cell with its reproduced and reported value, interval, seeds and verdict."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from fractions import Fraction

import pandas as pd

from analysis.collect import Runs
from analysis.quantities import ACCURACY, SECONDS, by_seed, noise_by_seed
from analysis.reported import reported_row
from analysis.speedups import SPEEDUP, kind_of, of_reported, speedups_by_seed
from analysis.statistics import NEUTRAL, PAIRINGS, Estimate, corrected, estimate, paired
from redraft.config import Benchmark, Cell, Column, Experiments, Row, Table
from redraft.errors import UserError

COLUMNS = [
    *("group", "row", "step", "column", "reproduced", "low", "high", "n_seeds", "reported", "deviation", "verdict"),
    *("tested_low", "tested_high", "p", "p_corrected", "iqm", "noise", "cell", "seeds", "manifests"),
]
"""`low` and `high` are the bootstrap interval that is shown, `tested_low` and `tested_high` that of the verdict.

`step` is the steps that the row's policy has done, empty for the last one. `p` is that of "no effect", `p_corrected`
the same over all relative cells of the table. `noise` is the standard error that sampling alone causes.
"""

EACH = "accuracy:*"
"""Quantity of a column that stands for one column a benchmark."""

SIGNIFICANT = 0.05
"""Corrected p-value above which no effect is asserted."""

MISSING, BASELINE, NOT_COMPARABLE, NOT_APPLICABLE = "missing", "baseline", "not comparable", "not applicable"


@dataclass(frozen=True, eq=False)
class Source:
    """What a table is made from."""

    runs: Runs
    reported: pd.DataFrame
    experiments: Experiments
    paper: str
    preset: str
    paper_scale: bool


@dataclass(frozen=True)
class Line:
    """A line of the regenerated table: a row of the file, at some point of its run.

    Attributes:
        at: steps done; None is the last policy.
        share: `at` as a share of all steps of the run; None with `at`.
        known: whether the preset has what the cell needs.
    """

    row: Row
    group: str
    label: str
    baseline: str
    at: int | None = None
    share: Fraction | None = None
    known: bool = True

    @property
    def is_baseline(self) -> bool:
        """Whether relative columns compare the line with itself."""
        return self.row.cell == self.baseline and self.at != 0


@dataclass(frozen=True)
class Measured:
    """A cell of the table before it is compared.

    Attributes:
        values: by seed, in the column's unit.
        cells: whose runs they come from.
        noise: standard error that sampling alone causes, NaN where that is unknown.
        applicable: whether there is such a value at all.
    """

    line: Line
    column: Column
    values: Mapping[int, float]
    reported: float
    cells: tuple[str, ...]
    noise: float = math.nan
    applicable: bool = True

    @property
    def compared(self) -> bool:
        """Whether the cell has an effect to be tested."""
        return bool(relation(self.column)) and self.applicable and not self.line.is_baseline


def make_table(table: Table, source: Source) -> pd.DataFrame:
    """All cells of a table, a line each, columns as in `COLUMNS`."""
    lines = lines_of(table, source)
    cells = [_measure(line, column, table, source) for line in lines for column in table.columns]
    if table.mean_row:
        cells += [_mean_of([cell for cell in cells if cell.column == column]) for column in table.columns]
    found = [estimate(cell.values) for cell in cells]
    tests = [
        f.p_value(_neutral(cell.column)) if cell.compared else math.nan for cell, f in zip(cells, found, strict=True)
    ]
    judged = zip(cells, found, tests, corrected(tests), strict=True)
    return pd.DataFrame([_record(*one, source) for one in judged], columns=COLUMNS)


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


def relation(column: Column) -> str | None:
    """How a column's values relate to the baseline's; a speedup does by itself."""
    return "speedup" if column.quantity.startswith(SPEEDUP) else column.relative


def lines_of(table: Table, source: Source) -> list[Line]:
    """The table's lines in order; of a trajectory, its rows at one step after the other."""
    lines, group = [], ""
    for row in table.rows:
        group = row.group or group
        line = Line(row, group, row.label, row.baseline or table.baseline)
        if row.at == "start":
            lines.append(replace(line, at=0, share=Fraction(0)))
        elif table.trajectory:
            lines += _along(line, source)
        else:
            lines.append(line)
    return sorted(lines, key=lambda line: line.at or 0) if table.trajectory else lines


def _along(line: Line, source: Source) -> list[Line]:
    """A line a policy that is evaluated during the run; the line itself if the preset has no such run."""
    try:
        run = source.experiments.run(f"{source.paper}/{line.row.cell}", 0, source.preset)
    except UserError:
        return [replace(line, known=False)]
    return [
        replace(line, label=f"{line.label} @ {step}", at=step, share=Fraction(step, run.steps))
        for step in run.evaluated_steps
    ]


def _measure(line: Line, column: Column, table: Table, source: Source) -> Measured:
    relative, is_accuracy = relation(column), column.quantity.startswith(ACCURACY)
    values = {seed: value * column.scale for seed, value in _values(line, column, source).items()}
    # The initial policy has accuracies only; a stage without a second in any step is none of the algorithm's, and what
    # no run could measure, such as the prefix of a method without drafts, is not there to be missed.
    applicable = line.at != 0 or (is_accuracy and not relative)
    if values and all(map(math.isnan, values.values())):
        applicable = False
    if column.quantity.startswith(SECONDS) and not relative and values and not any(values.values()):
        applicable = False
    compared = bool(relative) and not line.is_baseline
    return Measured(
        line=line,
        column=column,
        values=values if applicable else {},
        reported=_reported(line, column, table, source),
        cells=(line.row.cell, line.baseline) if compared else (line.row.cell,),
        noise=_noise(line, column, source, list(values)) if applicable else math.nan,
        applicable=applicable,
    )


def _values(line: Line, column: Column, source: Source) -> dict[int, float]:
    cell, quantity = line.row.cell, column.quantity
    if quantity.startswith(SPEEDUP):
        return speedups_by_seed(source.runs, quantity, cell, line.baseline, line.at)
    values = by_seed(source.runs, quantity, cell, line.at)
    if column.relative:
        values = paired(values, by_seed(source.runs, quantity, line.baseline, line.at), column.relative)
    return values


def _noise(line: Line, column: Column, source: Source, seeds: list[int]) -> float:
    """Standard error of a mean over seeds, or of a difference between two, that sampling alone causes."""
    if column.relative not in (None, "difference") or (line.is_baseline and column.relative):
        return math.nan
    cells = [line.row.cell, line.baseline] if column.relative else [line.row.cell]
    floors = [noise_by_seed(source.runs, column.quantity, cell, line.at) for cell in cells]
    squares = [floor.get(seed, math.nan) ** 2 for floor in floors for seed in seeds]
    return column.scale * math.sqrt(sum(squares)) / len(seeds) if seeds else math.nan


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


def _reported(line: Line, column: Column, table: Table, source: Source) -> float:
    """The paper's value of a cell, NaN where there is none that may be compared.

    Ratios and differences of accuracies compare at any scale; other values only with the paper's own models and
    benchmarks.
    """
    relative = relation(column)
    of_any_scale = relative in ("ratio", "speedup") or (relative and column.quantity.startswith(ACCURACY))
    if not column.reported or not line.known or not (of_any_scale or source.paper_scale):
        return math.nan
    if relative and line.at == 0:
        return math.nan
    row = reported_row(source.reported, lookup(source, line.row.cell), line.row.reported, line.share)
    if relative is None or column.printed_relative:
        return _mean(row, column)
    override = next((r.reported for r in table.rows if r.cell == line.baseline and r.at == "end"), {})
    baseline = reported_row(source.reported, lookup(source, line.baseline), override, line.share)
    if column.quantity.startswith(SPEEDUP):
        times, before = of_reported(row), of_reported(baseline)
        return kind_of(column.quantity)(before, times) if before and times else math.nan
    return PAIRINGS[relative](_mean(row, column), _mean(baseline, column))


def lookup(source: Source, cell: str) -> Cell:
    """The cell of that name."""
    return source.experiments.cell(f"{source.paper}/{cell}")


def _mean(row: dict[str, float], column: Column) -> float:
    values = [row[name] for name in column.reported if name in row]
    return sum(values) / len(values) if len(values) == len(column.reported) else math.nan


def _neutral(column: Column) -> float:
    relative = relation(column)
    return NEUTRAL[relative] if relative else math.nan


def verdict(
    found: Estimate, reported: float, relative: str | None, is_baseline: bool = False, p_corrected: float = math.nan
) -> str:
    """How a reproduced value stands to the reported one, by the tested interval.

    Args:
        p_corrected: p-value of "no effect" after correction over the table's comparisons.

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
    neutral = NEUTRAL[relative] if relative else math.nan
    if math.isnan(found.tested.low) or neutral in found.tested or p_corrected > SIGNIFICANT:
        return "inconclusive"
    if reported in found.tested:
        return "agrees"
    if relative is None or reported == neutral:
        return "differs"
    return "same direction" if (found.mean - neutral) * (reported - neutral) > 0 else "opposite direction"
