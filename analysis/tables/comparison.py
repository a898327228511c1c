"""A regenerated table: every cell with its reproduced and reported value, interval, seeds and verdict."""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence

import pandas as pd

from redraft.analysis.data.statistics import Family
from redraft.analysis.data.timing import timed_unevenly
from redraft.analysis.tables.cells import TableCell, average, cell_of, relation
from redraft.analysis.tables.columns import AVERAGE
from redraft.analysis.tables.lines import Line, Source, lines_of
from redraft.analysis.tables.verdicts import BASELINE, MISSING, NOT_APPLICABLE, NOT_COMPARABLE, UNEVEN, verdict
from redraft.config import Row, RunTable, id_of

COLUMNS = [
    *("group", "row", "step", "column", "reproduced", "low", "high", "n_seeds", "reported", "deviation", "verdict"),
    *("bootstrap_low", "bootstrap_high", "p", "p_corrected", "iqm", "noise", "cell", "seeds", "missing_seeds"),
    "manifests",
]
"""`low` and `high` are the Student interval, which is shown and decides.

`step` is the steps that the row's policy has done, empty for the last one. `p` is that of "no effect", `p_corrected`
the same over the family of the paper's report. `noise` is the standard error that sampling alone causes.
`missing_seeds` are those that the preset asks for and that have no finished run.
"""


def make_table(table: RunTable, source: Source, family: Family | None = None) -> pd.DataFrame:
    """All cells of a table with all its columns (`redraft.analysis.tables.columns.expand`), a line each, by `COLUMNS`.

    The comparisons that are corrected together are those of this table by default.
    """
    cells = cells_of(table, source)
    family = family or Family(comparisons(cells, source), source.runs.blocks)
    frame = pd.DataFrame([_record(cell, family, source) for cell in cells], columns=COLUMNS)
    return _judged_by_others(frame, table)


def cells_of(table: RunTable, source: Source) -> list[TableCell]:
    """All cells of a table, line by line, a mean row last."""
    cells: list[TableCell] = []
    for line in lines_of(table, source):
        own: list[TableCell] = []
        for column in table.columns:
            is_average = column.quantity == AVERAGE
            own.append(average(line, column, own) if is_average else cell_of(line, column, table, source))
        cells += own
    if table.mean_row:
        cells += [_mean_of([cell for cell in cells if cell.column == column]) for column in table.columns]
    return cells


def comparisons(cells: Iterable[TableCell], source: Source) -> Iterator[tuple[Mapping[int, float], float]]:
    """Values and neutral value of each cell that is tested; seconds are not where equal work took unequal time."""
    for cell in cells:
        if cell.compared and not (cell.timed and timed_unevenly(source.runs)):
            yield cell.values, cell.neutral


def _judged_by_others(frame: pd.DataFrame, table: RunTable) -> pd.DataFrame:
    """The frame with the verdicts of columns that another column judges, line by line.

    Where the other can have no value, as before the second epoch, nothing is compared.
    """
    width = len(table.columns)
    for i, column in enumerate(table.columns):
        if column.judged_by:
            other = [each.name for each in table.columns].index(column.judged_by)
            compared = ~frame["verdict"].iloc[i::width].isin([MISSING, BASELINE, NOT_APPLICABLE])
            own = frame.index[i::width][compared]
            found = frame["verdict"].iloc[other::width][compared.to_numpy()]
            frame.loc[own, "verdict"] = found.replace(NOT_APPLICABLE, NOT_COMPARABLE).to_numpy()
    return frame


def _mean_of(cells: list[TableCell]) -> TableCell:
    """The mean of a column over the lines that are not compared with themselves, where all of them were run."""
    column, grouped = cells[0].column, any(cell.line.group for cell in cells)
    rows = [cell for cell in cells if not cell.line.is_baseline and cell.line.at != 0]
    parts = [cell for cell in rows if cell.applicable] or rows
    seeds = set.intersection(*(set(cell.values) for cell in parts)) if parts else set()
    reported = [cell.reported for cell in parts if not math.isnan(cell.reported)]
    row = Row.model_construct(label="Mean", cell="", at="end", reported={}, group="", baseline=None)
    return TableCell(
        line=Line(row, "All" if grouped else "", "Mean", baseline="(each row's)"),
        column=column,
        values={seed: sum(cell.values[seed] for cell in parts) / len(parts) for seed in seeds},
        reported=sum(reported) / len(reported) if reported else math.nan,
        cells=tuple(dict.fromkeys(name for cell in parts for name in cell.cells)),
        noise=math.sqrt(sum(cell.noise**2 for cell in parts)) / len(parts) if parts else math.nan,
        applicable=any(cell.applicable for cell in rows),
        timed=any(cell.timed for cell in cells),
        blocks=cells[0].blocks,
    )


def _record(cell: TableCell, family: Family, source: Source) -> dict:
    """A cell as a line of the CSV file."""
    line, found = cell.line, cell.estimate
    of = "initial" if line.at == 0 else "manifest"
    name = id_of(source.paper, line.row.cell) if line.row.cell else ""
    return {
        "group": line.group,
        "row": line.label,
        "step": "" if line.at is None else str(line.at),
        "column": cell.column.name,
        "reproduced": found.mean,
        "low": found.interval.low,
        "high": found.interval.high,
        "n_seeds": len(found.seeds),
        "reported": cell.reported,
        "deviation": found.mean - cell.reported,
        "verdict": _verdict(cell, family, source),
        "bootstrap_low": found.bootstrap.low,
        "bootstrap_high": found.bootstrap.high,
        "p": found.p_value(cell.neutral) if cell.compared else math.nan,
        "p_corrected": family.corrected(cell.values, cell.neutral) if cell.compared else math.nan,
        "iqm": found.iqm,
        "noise": cell.noise,
        "cell": name,
        "seeds": " ".join(map(str, found.seeds)),
        "missing_seeds": " ".join(map(str, _missing(name, found.seeds, source))),
        "manifests": " ".join(path for name in cell.cells for path in source.runs.manifests(name, found.seeds, of)),
    }


def _missing(name: str, seeds: Sequence[int], source: Source) -> list[int]:
    """Seeds that a row's cell has no finished run of; none where nothing of the row is finished."""
    preset = source.experiments.preset(source.preset)
    wanted = source.experiments.seeds(source.experiments.cell(name), preset) if name else preset.seeds
    return [seed for seed in wanted if seeds and seed not in seeds]


def _verdict(cell: TableCell, family: Family, source: Source) -> str:
    if not cell.applicable:
        return NOT_APPLICABLE
    relative = relation(cell.column)
    is_baseline = bool(relative) and cell.line.is_baseline
    corrected = family.corrected(cell.values, cell.neutral) if cell.compared else math.nan
    result = verdict(cell.estimate, cell.reported, relative, is_baseline, corrected)
    undecided = result not in (MISSING, BASELINE, NOT_COMPARABLE)
    return UNEVEN if undecided and cell.timed and timed_unevenly(source.runs) else result
